#!/usr/bin/env python3
"""Train and measure a recall model: key-value pairs early, filler, then a question; no attention layers.

    start  k1 v1  k2 v2 ...  kn vn  filler ...  query k   ->  v

A prompt's last token is a key that was shown; the model's next token should be its value. Keys differ
within a prompt and values are drawn independently, so that without a memory of the pairs nothing
beats 1 in 32. The *distance* of a question is the number of tokens from the pair's value to the
prompt's last token.

Writes the model's folder with ``recall.json``: what the tokens mean, the measured recall, and some
prompts in a compact form. A prompt is expanded from a case of that file so:

    tokens = [start] + pairs, flattened + filler + [query, pairs[ask][0]]
    filler has distance - 2 (number of pairs - ask) tokens; with x = filler_start, each of them is
    first_filler + (x >> 16) mod fillers, and then x <- (1103515245 x + 12345) mod 2^31.

and the answer is ``expect``. Needs PyTorch and safetensors, no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import families
from kimi_linear import KimiDeltaAttention, KimiLinearConfig
from model import Mamba2, ModelConfig
from qwen3_5 import GatedDeltaNet, Qwen35Config

VOCAB = 96
PAD, START, END, QUERY = 0, 1, 2, 3
FIRST_FILLER, FILLERS = 16, 16
FIRST_KEY, KEYS = 32, 32
FIRST_VALUE, VALUES = 64, 32
MOST_PAIRS = 16
DISTANCES = (100, 500, 2000, 8000)

_IDS = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
_TWO = ("linear_attention",) * 2
RULES: dict[str, tuple[str, object]] = {
    "mamba2": (
        "nemotron_h",
        ModelConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            hybrid_override_pattern="M-M-",
            mamba_num_heads=2,
            intermediate_size=128,
        ),
    ),
    "gdn": (
        "qwen3_5",
        Qwen35Config(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=128,
            layer_types=_TWO,
            linear_num_value_heads=1,
            chunk=64,
            **_IDS,
        ),
    ),
    "kda": (
        "kimi_linear",
        KimiLinearConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=128,
            layer_types=_TWO,
            linear_num_heads=1,
            **_IDS,
        ),
    ),
}
# Steps x rows x tokens a row, one stage after the other: short first, then further and further apart.
STAGES = "300x24x128 100x12x256 40x6x1024 25x2x8192"


def filler(start: int, count: int) -> list[int]:
    """The filler of a case: a linear congruential generator's high bits."""
    tokens, x = [], start
    for _ in range(count):
        tokens.append(FIRST_FILLER + (x >> 16) % FILLERS)
        x = (1103515245 * x + 12345) % (1 << 31)
    return tokens


def expand(case: dict) -> list[int]:
    """The prompt of a case, as the module's text says."""
    pairs, ask = case["pairs"], case["ask"]
    count = case["distance"] - 2 * (len(pairs) - ask)
    return [
        START,
        *(t for pair in pairs for t in pair),
        *filler(case["filler_start"], count),
        QUERY,
        pairs[ask][0],
    ]


def draw_pairs(rng: np.random.Generator, rows: int, pairs: int) -> np.ndarray:
    """Random pairs, [rows, pairs, 2]: keys without repetition, values independent."""
    keys = rng.permuted(np.tile(np.arange(KEYS), (rows, 1)), axis=1)[:, :pairs]
    values = rng.integers(0, VALUES, (rows, pairs))
    return np.stack([FIRST_KEY + keys, FIRST_VALUE + values], -1)


def batch(
    rng: np.random.Generator, rows: int, length: int, long: bool
) -> tuple[Tensor, Tensor]:
    """Training rows [rows, length] and their targets, -100 where nothing is asked.

    After the filler every pair is asked for, in random order and without showing the answers; each
    step has one number of pairs and one number of filler tokens.
    """
    pairs = int(rng.integers(MOST_PAIRS // 4, MOST_PAIRS + 1))
    most = length - 1 - 4 * pairs
    count = most if long else int(rng.integers(0, most + 1))
    shown = draw_pairs(rng, rows, pairs)
    asked = rng.permuted(np.tile(np.arange(pairs), (rows, 1)), axis=1)
    asked = np.take_along_axis(shown, asked[..., None], 1)
    questions = np.stack([np.full((rows, pairs), QUERY), asked[..., 0]], -1)
    x = np.full((rows, length), PAD)
    y = np.full((rows, length), -100)
    x[:, 0] = START
    at = 1 + 2 * pairs
    x[:, 1:at] = shown.reshape(rows, -1)
    x[:, at : at + count] = FIRST_FILLER + rng.integers(0, FILLERS, (rows, count))
    at += count
    x[:, at : at + 2 * pairs] = questions.reshape(rows, -1)
    y[:, at + 1 : at + 2 * pairs : 2] = asked[..., 1]
    return torch.from_numpy(x), torch.from_numpy(y)


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
        if isinstance(m, Mamba2):
            wide = m.config.n_groups * m.config.ssm_state_size
            parts = m.conv1d.weight.split([m.inner, wide, wide])
            convs = [(parts[0], 3), (parts[1], 2), (parts[2], 3)]
        elif isinstance(m, GatedDeltaNet):
            parts = m.conv1d.weight.split([m.key, m.key, m.value])
            convs = [(parts[0], 3), (parts[1], 2), (parts[2], 3)]
        else:
            convs = [
                (m.q_conv1d.weight, 3),
                (m.k_conv1d.weight, 2),
                (m.v_conv1d.weight, 3),
            ]
        for taps, current in convs:
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
            x, y = batch(rng, rows, length, stage > 1)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model.lm_head(model(x)).float()
                loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
                is_filler = (x >= FIRST_FILLER) & (x < FIRST_FILLER + FILLERS)
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
                    f"length {length}, step {i + 1}: loss {float(loss):.4f}, penalty"
                    f" {float(extra):.4f}, right {right / asked:.4f},"
                    f" {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                right = asked = 0
        families.export(model, args.model, generation=False)


@torch.no_grad()
def answers(
    model: nn.Module, shown: np.ndarray, between: np.ndarray, cut: bool
) -> Tensor:
    """Logits for every key of each row, each asked alone from the state after the filler.

    Parameters
    ----------
    shown
        [rows, pairs, 2].
    between
        [rows, count]: filler.
    cut
        Set the recurrent states to zero before the question; the convolutions keep their inputs.

    Returns
    -------
    Tensor
        [rows, pairs, vocab].
    """
    rows, pairs = shown.shape[:2]
    start = np.full((rows, 1), START)
    prefix = torch.from_numpy(
        np.concatenate([start, shown.reshape(rows, -1), between], 1)
    )
    caches: list[dict[str, Tensor]] = [{} for _ in model.layers]
    whole, piece = prefix.shape[1], 1024
    even = whole // 128 * 128
    # The block form in which training runs takes whole chunks; the rest goes in one exact piece.
    for at in range(0, even, piece):
        model(prefix[:, at : min(at + piece, even)], None, caches)
    if even < whole:
        model(prefix[:, even:], None, caches)
    for cache in caches:
        for name in cache:
            cache[name] = cache[name].repeat_interleave(pairs, 0)
        if cut and "state" in cache:
            cache["state"] = torch.zeros_like(cache["state"])
    keys = torch.from_numpy(shown[..., 0].reshape(-1))
    question = torch.stack([torch.full_like(keys, QUERY), keys], 1)
    hidden = model(question, None, caches)[:, -1]
    return model.lm_head(hidden).float().view(rows, pairs, -1)


def measure(model: nn.Module, seed: int, rows: int) -> list[dict[str, float]]:
    """Recall at each distance of the nearest pair, with the state and with the state set to zero."""
    rng = np.random.default_rng(seed)
    table = []
    for distance in DISTANCES:
        shown = draw_pairs(rng, rows, MOST_PAIRS)
        between = FIRST_FILLER + rng.integers(0, FILLERS, (rows, distance - 2))
        row = {"distance": distance, "questions": rows * MOST_PAIRS}
        value = torch.from_numpy(shown[..., 1])
        for name, cut in (("recall", False), ("recall_state_zeroed", True)):
            logits = answers(model, shown, between, cut)
            row[name] = float((logits.argmax(-1) == value).double().mean())
            if not cut:
                best = logits.topk(2, -1).values
                row["least_margin"] = float((best[..., 0] - best[..., 1]).min())
        table.append(row)
        print(json.dumps(row), flush=True)
    return table


def cases(seed: int, each: int) -> list[dict[str, object]]:
    """Prompts for tests, ``each`` for every distance."""
    rng = np.random.default_rng(seed)
    result = []
    for distance in DISTANCES:
        for i in range(each):
            pairs = draw_pairs(rng, 1, MOST_PAIRS)[0].tolist()
            ask = (5 * i + 3) % MOST_PAIRS
            result.append(
                {
                    "pairs": pairs,
                    "ask": ask,
                    "filler_start": int(rng.integers(1 << 31)),
                    "distance": distance,
                    "expect": pairs[ask][1],
                }
            )
    return result


@torch.no_grad()
def check_cases(model: nn.Module, listed: list[dict]) -> dict[str, float]:
    """Share of the listed cases that the whole-prompt forward answers, and its least margin."""
    right, margins = 0, []
    for case in listed:
        tokens = torch.tensor([expand(case)])
        logits = model.logits(tokens)[0, -1]
        right += int(logits.argmax()) == case["expect"]
        others = logits.clone()
        others[case["expect"]] = -torch.inf
        margins.append(float(logits[case["expect"]] - others.max()))
    return {"right": right / len(listed), "least_margin": min(margins)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rule", choices=RULES)
    parser.add_argument("model", type=Path, help="model folder to write to")
    parser.add_argument(
        "--stages",
        type=lambda text: [tuple(map(int, s.split("x"))) for s in text.split()],
        default=STAGES,
        help="steps x rows x tokens a row of each stage",
    )
    parser.add_argument(
        "--decay-steps",
        type=int,
        help="steps of the final decay; 3/4 of those after the first stage unless given",
    )
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument(
        "--penalty", type=float, default=0.005, help="weight of the gates' penalty"
    )
    parser.add_argument("--rows", type=int, default=16, help="prompts a distance")
    parser.add_argument("--seed", type=int, default=1813)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--measure", action="store_true", help="do not train: measure the folder again"
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.model.mkdir(parents=True, exist_ok=True)
    family, config = RULES[args.rule]
    record_file = args.model / "training.json"
    if not args.measure:
        model = families.FAMILIES[family][1](config)
        began = time.monotonic()
        train(model, args)
        record = {
            "rule": args.rule,
            "parameters": sum(p.numel() for p in model.parameters()),
            "stages": [
                dict(zip(("steps", "rows", "length"), s, strict=True))
                for s in args.stages
            ],
            "tokens": sum(a * b * c for a, b, c in args.stages),
            "lr": args.lr,
            "penalty": args.penalty,
            "seed": args.seed,
            "seconds": round(time.monotonic() - began, 1),
            "device": f"{args.threads} threads, {platform.machine()}",
            "torch": torch.__version__,
        }
        record_file.write_text(json.dumps(record, indent=1) + "\n")
    # From the stored bf16 weights; training mode takes KDA's block form, all arithmetic is float32.
    model = families.load(args.model).train()
    table = measure(model, args.seed + 1, args.rows)
    listed = cases(args.seed + 2, 10)
    found = check_cases(model.eval(), listed)
    print("cases:", json.dumps(found), flush=True)
    head = {
        "tokens": {
            "pad": PAD,
            "start": START,
            "query": QUERY,
            "first_filler": FIRST_FILLER,
            "fillers": FILLERS,
            "first_key": FIRST_KEY,
            "keys": KEYS,
            "first_value": FIRST_VALUE,
            "values": VALUES,
        },
        "prompt": "[start] + pairs flattened + filler + [query, pairs[ask][0]]; "
        "the next token should be expect",
        "filler": "distance - 2 * (number of pairs - ask) tokens; x = filler_start; each is "
        "first_filler + (x >> 16) % fillers, then x = (1103515245 * x + 12345) % 2147483648",
        "chance": 1.0 / VALUES,
        "measured": table,
        "cases_right": found["right"],
        "cases_least_margin": found["least_margin"],
    }
    lines = ",\n  ".join(json.dumps(c, separators=(",", ":")) for c in listed)
    text = json.dumps(head, indent=1)[:-2] + f',\n "cases": [\n  {lines}\n ]\n}}\n'
    json.loads(text)
    (args.model / "recall.json").write_text(text)


if __name__ == "__main__":
    main()
