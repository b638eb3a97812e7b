#!/usr/bin/env python3
"""Train one of the bundled text models and write it as a Hugging Face folder.

Needs PyTorch, safetensors and the tokenizer's package. The seed fixes initial weights, batches and
dropout; two runs on a GPU still differ by the order of its atomic additions. The two delta-rule
families train on a CPU: their defaults are those of a short run there.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import families
import heldout
import transplant
import vocabulary

# What the bundled models of each family were trained with.
DEFAULTS: dict[str, dict[str, object]] = {
    "nemotron_h": {
        "device": "cuda",
        "optimizer": "adamw",
        "schedule": "cosine",
        "steps": 10000,
        "rows": 32,
        "lengths": [1024],
        "compiled_length": 1024,
        "warmup": 300,
        "austen_dropout": 0.15,
        "python_dropout": 0.05,
    },
    "qwen3_5": {"steps": 480},
    "kimi_linear": {"steps": 480},
}
_ON_CPU: dict[str, object] = {
    "device": "cpu",
    "optimizer": "muon",
    "schedule": "hold",
    "rows": 16,
    "lengths": [256, 256, 256, 1024],
    "compiled_length": 256,
    "warmup": 60,
    "austen_dropout": 0.0,
    "python_dropout": 0.0,
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("text", type=Path, help="output folder of fetch_text.py")
    parser.add_argument("model", type=Path, help="model folder; holds the tokenizer")
    parser.add_argument("--family", choices=DEFAULTS, default="nemotron_h")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument(
        "--start",
        type=Path,
        help="nemotron_h folder to begin from, as far as its weights have counterparts",
    )
    parser.add_argument("--steps", type=int)
    parser.add_argument(
        "--rows", type=int, help="sequences a step, of the first length"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        help="tokens a sequence, in equal shares of the steps; tokens a step stay the same",
    )
    parser.add_argument(
        "--austen-share",
        type=float,
        default=0.28,
        help="share of the rows from the novels",
    )
    parser.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        help="muon: for the matrices between embeddings and lm_head, AdamW for the rest",
    )
    parser.add_argument(
        "--schedule",
        choices=("cosine", "hold"),
        help="after the warm-up: cosine to 1%%, or constant and linear to 0 over the last 40%%",
    )
    parser.add_argument("--warmup", type=int, help="steps of linear warm-up")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument(
        "--austen-dropout", type=float, help="dropout in rows from the novels"
    )
    parser.add_argument(
        "--python-dropout", type=float, help="dropout in the other rows"
    )
    parser.add_argument("--seed", type=int, default=1811)
    parser.add_argument("--evaluate-every", type=int, default=1000)
    parser.add_argument(
        "--evaluate-share",
        type=int,
        default=1,
        help="score every N-th held-out window only, except at the end",
    )
    parser.add_argument("--eager", action="store_true", help="do not use torch.compile")
    parser.add_argument(
        "--compiled-length",
        type=int,
        help="take torch.compile for rows up to this length only: a delta rule's graph grows with it",
    )
    parser.add_argument(
        "--state",
        type=Path,
        help="file to keep the whole training state in at every export, and to go on from;\n"
        "with another --steps the decay of the hold schedule moves",
    )
    args = parser.parse_args()
    known = DEFAULTS[args.family]
    if args.family != "nemotron_h":
        known = _ON_CPU | known
    for name, value in known.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def make_optimizers(
    model: nn.Module, args: argparse.Namespace
) -> list[torch.optim.Optimizer]:
    """AdamW with weight decay on matrices only, or Muon for the matrices and AdamW for the rest.

    Muon's update is scaled to the size of AdamW's, so that both take the same rate.
    """
    inner, outer, keep = [], [], []
    for name, p in model.named_parameters():
        if "embed" in name or p.ndim != 2:
            keep.append(p)
        else:
            (outer if name == "lm_head.weight" else inner).append(p)
    groups = [
        {"params": outer, "weight_decay": args.weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]
    if args.optimizer == "adamw":
        groups[0]["params"] = inner + outer
    result: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    ]
    if args.optimizer == "muon":
        result.append(
            torch.optim.Muon(
                inner,
                lr=args.lr,
                weight_decay=args.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return result


def rate(step: int, args: argparse.Namespace) -> float:
    """Learning rate: linear warm-up, then as ``--schedule`` says."""
    warm = min(args.warmup, args.steps // 4 + 1)
    if step < warm:
        return args.lr * (step + 1) / warm
    if args.schedule == "hold":
        return args.lr * min(1.0, (args.steps - step) / (0.4 * args.steps))
    done = (step - warm) / max(1, args.steps - warm)
    return args.lr * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done)))


class Batches:
    """Random windows of the two training streams; both streams live on the device."""

    def __init__(
        self,
        documents: list[heldout.EncodedDocument],
        words: vocabulary.Vocabulary,
        args: argparse.Namespace,
    ) -> None:
        self.words, self.device, self.share = words, args.device, args.austen_share
        self.tokens = args.rows * args.lengths[0]
        self.streams = {}
        for name in ("austen", "python"):
            parts = [
                np.concatenate([[words.bos], d.ids, [words.eos]])
                for d in documents
                if d.corpus == name and not d.held_out
            ]
            self.streams[name] = torch.from_numpy(np.concatenate(parts)).to(args.device)
        self.generator = torch.Generator(args.device).manual_seed(args.seed)

    def rows(self, length: int) -> dict[str, int]:
        """Rows of each corpus in a step of this length."""
        rows = self.tokens // length
        austen = round(rows * self.share)
        return {"austen": austen, "python": rows - austen}

    def next(self, length: int) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, each [rows, length].

        In every second row (by chance) the first input is bos, so that text which begins anywhere
        after a bos, as prompts do, is nothing new to the model.
        """
        parts = []
        span = torch.arange(length + 1, device=self.device)
        for name, count in self.rows(length).items():
            stream = self.streams[name]
            start = torch.randint(
                len(stream) - length,
                (count, 1),
                generator=self.generator,
                device=self.device,
            )
            parts.append(stream[start + span])
        block = torch.cat(parts)
        inputs = block[:, :-1].contiguous()
        coin = torch.rand(len(inputs), generator=self.generator, device=self.device)
        inputs[:, 0] = torch.where(coin < 0.5, self.words.bos, inputs[:, 0])
        return inputs, block[:, 1:].contiguous()


@torch.no_grad()
def held_out_nats(
    model: nn.Module,
    documents: list[heldout.EncodedDocument],
    words: vocabulary.Vocabulary,
    args: argparse.Namespace,
    share: int,
) -> tuple[dict[str, float], dict[str, int]]:
    """Sum -ln p of the held-out tokens, per corpus, and count them; every ``share``-th window.

    Runs the forward of training (KDA's block form); dropout is only where it is asked for.
    """
    nats, count = {}, {}
    length = max(args.lengths)
    rows = max(1, args.rows * args.lengths[0] // length)
    torch.compiler.set_stance("force_eager")
    for name in ("austen", "python"):
        parts = [
            heldout.windows(d.ids, length, words.bos)
            for d in documents
            if d.held_out and d.corpus == name
        ]
        x, y, s = (
            torch.from_numpy(np.concatenate(p)[::share]).to(args.device)
            for p in zip(*parts, strict=True)
        )
        total = 0.0
        for at in range(0, len(x), rows):
            cut = slice(at, at + rows)
            with torch.autocast(args.device, torch.bfloat16):
                logits = model.lm_head(model(x[cut])).float()
            loss = F.cross_entropy(
                logits.flatten(0, 1), y[cut].flatten(), reduction="none"
            )
            total += float(loss[s[cut].flatten()].double().sum())
        nats[name], count[name] = total, int(s.sum())
    torch.compiler.set_stance("default")
    return nats, count


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    if args.threads:
        torch.set_num_threads(args.threads)
    began = time.monotonic()

    words = vocabulary.load(args.model)
    documents = heldout.encode(args.text, args.model)
    config_type, model_type = families.FAMILIES[args.family]
    model = model_type(config_type())
    if args.start:
        transplant.begin_from(model, words, args.start)
    model.to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters:,} parameters; text encoded after {time.monotonic() - began:.1f} s",
        flush=True,
    )
    batches = Batches(documents, words, args)
    optimizers = make_optimizers(model, args)

    def loss_of(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            F.linear(hidden, weight).flatten(0, 1).float(), targets.flatten()
        )

    if not args.eager:
        for layer in model.layers:
            layer.compile(dynamic=False)
        loss_of = torch.compile(loss_of, dynamic=False)

    first, spent, log = 0, 0.0, []
    if args.state and args.state.exists():
        kept = torch.load(args.state, weights_only=True)
        model.load_state_dict(kept["model"])
        for optimizer, values in zip(optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        batches.generator.set_state(kept["batches"])
        torch.set_rng_state(kept["rng"])
        first, spent, log = kept["step"], kept["seconds"], kept["log"]
        print(f"going on after step {first}", flush=True)

    def keep(step: int) -> None:
        families.export(model, args.model)
        if args.state:
            values = {
                "model": model.state_dict(),
                "optimizers": [o.state_dict() for o in optimizers],
                "batches": batches.generator.get_state(),
                "rng": torch.get_rng_state(),
                "step": step,
                "seconds": spent + time.monotonic() - began,
                "log": log,
            }
            partial = args.state.with_suffix(".part")
            torch.save(values, partial)
            partial.replace(args.state)

    losses, marked, marked_step = [], time.monotonic(), first
    for step in range(first, args.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(step, args)
        length = args.lengths[step * len(args.lengths) // args.steps]
        torch.compiler.set_stance(
            "default" if length <= args.compiled_length else "force_eager"
        )
        inputs, targets = batches.next(length)
        # The novels are seen more often than the documents, so they need more of it.
        dropout = None
        if args.austen_dropout or args.python_dropout:
            dropout = torch.cat(
                [
                    torch.full((n, 1, 1), getattr(args, f"{c}_dropout"))
                    for c, n in batches.rows(length).items()
                ]
            ).to(args.device)
        with torch.autocast(args.device, torch.bfloat16):
            loss = loss_of(model(inputs, dropout), model.lm_head.weight, targets)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
        if (step + 1) % 100 == 0 or step in (0, 9):
            value = float(torch.stack(losses).mean())
            now = time.monotonic()
            pace = 1e3 * (now - marked) / (step + 1 - marked_step)
            print(
                f"step {step + 1}: loss {value:.4f}, {pace:.1f} ms a step,"
                f" {now - began:.0f} s",
                flush=True,
            )
            losses, marked, marked_step = [], now, step + 1
        end = step + 1 == args.steps
        if (step + 1) % args.evaluate_every == 0 or end:
            nats, count = held_out_nats(
                model, documents, words, args, 1 if end else args.evaluate_share
            )
            log.append({"step": step + 1, **{c: nats[c] / count[c] for c in nats}})
            print("held out:", json.dumps(log[-1]), flush=True)
            keep(step + 1)
            marked, marked_step = time.monotonic(), step + 1

    record = {
        "family": args.family,
        "parameters": parameters,
        "steps": args.steps,
        "tokens_a_step": batches.tokens,
        "tokens": args.steps * batches.tokens,
        "stream_tokens": {k: len(v) for k, v in batches.streams.items()},
        "rows": {str(n): batches.rows(n) for n in sorted(set(args.lengths))},
        "seconds": round(spent + time.monotonic() - began, 1),
        "device": torch.cuda.get_device_name()
        if args.device == "cuda"
        else f"{args.threads or torch.get_num_threads()} threads, {platform.machine()}",
        "torch": torch.__version__,
        "arguments": {
            k: str(v) if isinstance(v, Path) else v
            for k, v in vars(args).items()
            if k not in ("text", "model", "state")
        },
        "held_out_nats_per_token": log,
    }
    (args.model / "training.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
