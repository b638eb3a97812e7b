"""Training of the recall models: initial values, a penalty on the gates, the stages."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import families
import recall_task as task
from kimi_linear import KimiDeltaAttention
from nemotron_h import Mamba2
from qwen3_5 import GatedDeltaNet


def mixers(model: nn.Module) -> list[nn.Module]:
    """The model's recurrent mixers, in order."""
    kinds = (Mamba2, GatedDeltaNet, KimiDeltaAttention)
    return [m for m in model.modules() if isinstance(m, kinds)]


@torch.no_grad()
def remember_at_first(model: nn.Module) -> None:
    """Initial values that make the task easy to find.

    States decay by about 1e-4 a token; the convolution gives keys the token before and everything
    else the current one, since a pair's value stands one behind its key.
    """
    for m in mixers(model):
        m.A_log.fill_(np.log(0.02))
        m.dt_bias.fill_(np.log(np.expm1(0.01)) if not isinstance(m, Mamba2) else -3.0)
        if isinstance(m, KimiDeltaAttention):
            convs = [m.q_conv1d.weight, m.k_conv1d.weight, m.v_conv1d.weight]
        else:
            convs = m.conv1d.weight.split(m.convolved)
        # Second in every rule's order are the keys (B of Mamba-2).
        for taps, current in zip(convs, (3, 2, 3), strict=True):
            taps.mul_(0.2)[..., current] += 1.0


class GateWatch:
    """Collects how strongly the mixers forget and write, by hooks on their forward."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []
        for m in mixers(model):
            m.register_forward_pre_hook(self._look)

    def _look(self, module: nn.Module, args: tuple) -> None:
        if not module.training:
            return
        hidden = args[0]
        if isinstance(module, Mamba2):
            raw = F.linear(
                hidden, module.in_proj.weight[-module.config.mamba_num_heads :]
            )
            dt = F.softplus(raw.float() + module.dt_bias)
            self.seen.append((dt * torch.exp(module.A_log.float()), dt))
        else:
            g, beta = module.gates(hidden)
            self.seen.append((-g, beta))

    def penalty(self, at: Tensor) -> Tensor:
        """Mean over the tokens of mask ``at`` of ln(1 + forgetting/1e-6) + ln(1 + writing/1e-4)."""
        total = torch.zeros(())
        for forget, write in self.seen:
            total = total + torch.log1p(forget[at] * 1e6).mean()
            total = total + torch.log1p(write[at] * 1e4).mean()
        self.seen.clear()
        return total


def train(model: nn.Module, args: argparse.Namespace) -> None:
    """AdamW through the stages; a warm-up, then constant, then linear to 0."""
    rng = np.random.default_rng(args.seed)
    remember_at_first(model)
    watch = GateWatch(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    began, steps = time.monotonic(), sum(s[0] for s in args.stages)
    tail = args.decay_steps or sum(s[0] for s in args.stages[1:]) * 3 // 4
    done = 0
    for stage, (count, rows, length) in enumerate(args.stages):
        right = asked = 0
        for i in range(count):
            for group in optimizer.param_groups:
                group["lr"] = args.lr * min(1.0, (done + 1) / 50, (steps - done) / tail)
            x, y = task.batch(rng, rows, length, stage > 1)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model.lm_head(model(x)).float()
                loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
                is_filler = task.is_filler(x)
                extra = args.penalty * watch.penalty(is_filler)
            optimizer.zero_grad(set_to_none=True)
            (loss + extra).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done += 1
            at = y >= 0
            right += int((logits.argmax(-1)[at] == y[at]).sum())
            asked += int(at.sum())
            if (i + 1) % 25 == 0 or i + 1 == count:
                print(
                    f"length {length}, step {i + 1}: loss {float(loss.detach()):.4f}, penalty"
                    f" {float(extra.detach()):.4f}, right {right / asked:.4f},"
                    f" {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                right = asked = 0
        families.export(model, args.model, generation=False)
