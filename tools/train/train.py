#!/usr/bin/env python3
"""Train one of the bundled text models and write it as a Hugging Face folder.

Needs PyTorch, safetensors and the tokenizer's package. The seed fixes initial weights, batches and
dropout; two runs on a GPU still differ by the order of its atomic additions. The two delta-rule
families begin from a Mamba-2 model's weights, hence their shorter runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import arguments
import families
import heldout
import scoring
import transplant
import vocabulary
from batches import Batches
from optimizers import make_optimizers, rate

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
    "qwen3_5": {"steps": 4400},
    "kimi_linear": {"steps": 4000},
}
_DELTA_RULE: dict[str, object] = {
    "device": "cuda",
    "optimizer": "muon",
    "schedule": "hold",
    "rows": 64,
    "lengths": [256, 256, 512, 1024],
    "compiled_length": 256,
    "warmup": 100,
    "austen_dropout": 0.1,
    "python_dropout": 0.03,
}


def parse_args() -> argparse.Namespace:
    parser = arguments.parser(
        __doc__, text=arguments.TEXT, model="model folder; holds the tokenizer"
    )
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
        known = _DELTA_RULE | known
    for name, value in known.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def held_out_nats(
    model: nn.Module,
    documents: list[heldout.EncodedDocument],
    bos: int,
    args: argparse.Namespace,
    share: int,
) -> dict[str, float]:
    """Mean -ln p of the held-out tokens, per corpus, in every ``share``-th window.

    Runs the forward of training (KDA's block form); dropout is only where it is asked for.
    """

    def logits_of(ids: Tensor) -> Tensor:
        with torch.autocast(args.device, torch.bfloat16):
            return model.lm_head(model(ids))

    length = max(args.lengths)
    rows = max(1, args.rows * args.lengths[0] // length)
    torch.compiler.set_stance("force_eager")
    nats, count = scoring.nats(
        logits_of, documents, bos, args.device, length, rows, share
    )
    torch.compiler.set_stance("default")
    return {c: nats[c] / count[c] for c in nats}


class SavedState:
    """The whole training state in a file, if one is named."""

    def __init__(
        self,
        file: Path | None,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        batches: Batches,
    ) -> None:
        self.file, self.model = file, model
        self.optimizers, self.batches = optimizers, batches

    def restore(self) -> tuple[int, float, list[dict]]:
        """Go on from the file if there is one: steps done, seconds spent and the log."""
        if not self.file or not self.file.exists():
            return 0, 0.0, []
        kept = torch.load(self.file, weights_only=True)
        self.model.load_state_dict(kept["model"])
        for optimizer, values in zip(self.optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.batches.generator.set_state(kept["batches"])
        torch.set_rng_state(kept["rng"])
        print(f"going on after step {kept['step']}", flush=True)
        return kept["step"], kept["seconds"], kept["log"]

    def keep(self, step: int, seconds: float, log: list[dict]) -> None:
        """Write the file anew; the old one stays whole until then."""
        if not self.file:
            return
        values = {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "batches": self.batches.generator.get_state(),
            "rng": torch.get_rng_state(),
            "step": step,
            "seconds": seconds,
            "log": log,
        }
        partial = self.file.with_suffix(".part")
        torch.save(values, partial)
        partial.replace(self.file)


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

    state = SavedState(args.state, model, optimizers, batches)
    first, spent, log = state.restore()
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
            share = 1 if end else args.evaluate_share
            nats = held_out_nats(model, documents, words.bos, args, share)
            log.append({"step": step + 1, **nats})
            print("held out:", json.dumps(log[-1]), flush=True)
            families.export(model, args.model)
            state.keep(step + 1, spent + time.monotonic() - began, log)
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
