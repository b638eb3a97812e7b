#!/usr/bin/env python3
"""Train the bundled model on one GPU and write it as a Hugging Face folder.

Needs PyTorch, safetensors and tokenizers. The seed fixes initial weights, batches and dropout; two
runs on the same machine still differ by the order of the GPU's atomic additions.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import heldout
from model import ModelConfig, NemotronH


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("text", type=Path, help="output folder of fetch_text.py")
    parser.add_argument("model", type=Path, help="model folder; holds tokenizer.json")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--rows", type=int, default=32, help="sequences a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a sequence")
    parser.add_argument(
        "--austen-share",
        type=float,
        default=0.28,
        help="share of the rows from the novels",
    )
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument(
        "--austen-dropout",
        type=float,
        default=0.15,
        help="dropout in rows from the novels",
    )
    parser.add_argument(
        "--python-dropout", type=float, default=0.05, help="dropout in the other rows"
    )
    parser.add_argument("--seed", type=int, default=1811)
    parser.add_argument("--evaluate-every", type=int, default=1000)
    parser.add_argument("--eager", action="store_true", help="do not use torch.compile")
    return parser.parse_args()


def make_optimizer(model: NemotronH, args: argparse.Namespace) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    decay, keep = [], []
    for name, p in model.named_parameters():
        matrix = p.ndim == 2 and name != "backbone.embeddings.weight"
        (decay if matrix else keep).append(p)
    groups = [
        {"params": decay, "weight_decay": args.weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True
    )


def rate(step: int, args: argparse.Namespace) -> float:
    """Learning rate: linear warm-up over 300 steps, then a cosine to 1% of the peak."""
    warm = min(300, args.steps // 4 + 1)
    if step < warm:
        return args.lr * (step + 1) / warm
    done = (step - warm) / max(1, args.steps - warm)
    return args.lr * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done)))


class Batches:
    """Random windows of the two training streams; both streams live on the GPU."""

    def __init__(
        self, documents: list[heldout.EncodedDocument], args: argparse.Namespace
    ) -> None:
        self.length = args.length
        austen = round(args.rows * args.austen_share)
        self.rows = {"austen": austen, "python": args.rows - austen}
        self.streams = {}
        for name in self.rows:
            parts = [
                np.concatenate([[heldout.BOS_ID], d.ids, [heldout.EOS_ID]])
                for d in documents
                if d.corpus == name and not d.held_out
            ]
            self.streams[name] = torch.from_numpy(np.concatenate(parts)).cuda()
        self.generator = torch.Generator("cuda").manual_seed(args.seed)

    def next(self) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, each [rows, length].

        In every second row (by chance) the first input is bos, so that text which begins anywhere
        after a bos, as prompts do, is nothing new to the model.
        """
        parts = []
        span = torch.arange(self.length + 1, device="cuda")
        for name, count in self.rows.items():
            stream = self.streams[name]
            start = torch.randint(
                len(stream) - self.length,
                (count, 1),
                generator=self.generator,
                device="cuda",
            )
            parts.append(stream[start + span])
        block = torch.cat(parts)
        inputs = block[:, :-1].contiguous()
        coin = torch.rand(len(inputs), generator=self.generator, device="cuda") < 0.5
        inputs[:, 0] = torch.where(coin, heldout.BOS_ID, inputs[:, 0])
        return inputs, block[:, 1:].contiguous()


@torch.no_grad()
def held_out_nats(
    model: NemotronH, documents: list[heldout.EncodedDocument], args: argparse.Namespace
) -> dict[str, float]:
    """Sum -ln p of all held-out tokens, per corpus."""
    nats = {}
    for name in ("austen", "python"):
        parts = [
            heldout.windows(d.ids, args.length)
            for d in documents
            if d.held_out and d.corpus == name
        ]
        x, y, s = (
            torch.from_numpy(np.concatenate(p)).cuda() for p in zip(*parts, strict=True)
        )
        total = 0.0
        torch.compiler.set_stance("force_eager")
        for at in range(0, len(x), args.rows):
            rows = slice(at, at + args.rows)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model.lm_head(model(x[rows])).float()
            loss = F.cross_entropy(
                logits.flatten(0, 1), y[rows].flatten(), reduction="none"
            )
            total += float(loss[s[rows].flatten()].double().sum())
        nats[name] = total
    torch.compiler.set_stance("default")
    return nats


def export(model: NemotronH, config: ModelConfig, folder: Path) -> None:
    """Write ``model.safetensors`` (bf16), ``config.json`` and ``generation_config.json``."""
    tensors = {
        k: v.detach().to(torch.bfloat16).contiguous().cpu()
        for k, v in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config.to_json(), indent=2) + "\n")
    generation = {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
    }
    (folder / "generation_config.json").write_text(
        json.dumps(generation, indent=2) + "\n"
    )


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    began = time.monotonic()

    documents = heldout.encode(args.text, args.model)
    config = ModelConfig()
    model = NemotronH(config).cuda()
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters:,} parameters; text encoded after {time.monotonic() - began:.1f} s",
        flush=True,
    )
    batches = Batches(documents, args)
    optimizer = make_optimizer(model, args)
    # The novels are seen more than three times as often as the documents, so they need more of it.
    dropout = torch.cat(
        [
            torch.full((batches.rows[c], 1, 1), getattr(args, f"{c}_dropout"))
            for c in batches.rows
        ]
    ).cuda()

    def loss_of(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            F.linear(hidden, weight).flatten(0, 1).float(), targets.flatten()
        )

    if not args.eager:
        for layer in model.backbone.layers:
            layer.compile(dynamic=False)
        loss_of = torch.compile(loss_of, dynamic=False)

    log, losses, marked, marked_step = [], [], time.monotonic(), 0
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args)
        inputs, targets = batches.next()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model(inputs, dropout), model.lm_head.weight, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if (step + 1) % 100 == 0 or step in (0, 9):
            value = float(torch.stack(losses).mean())
            now = time.monotonic()
            pace = 1e3 * (now - marked) / (step + 1 - marked_step)
            print(
                f"step {step + 1}: loss {value:.4f}, {pace:.1f} ms a step, {now - began:.0f} s",
                flush=True,
            )
            losses, marked, marked_step = [], now, step + 1
        if (step + 1) % args.evaluate_every == 0 or step + 1 == args.steps:
            result = heldout.summary(documents, held_out_nats(model, documents, args))
            log.append(
                {
                    "step": step + 1,
                    **{k: v["nats_per_token"] for k, v in result.items()},
                }
            )
            print("held out:", json.dumps(log[-1]), flush=True)
            export(model, config, args.model)
            marked = time.monotonic()

    record = {
        "parameters": parameters,
        "steps": args.steps,
        "tokens_a_step": args.rows * args.length,
        "tokens": args.steps * args.rows * args.length,
        "stream_tokens": {k: len(v) for k, v in batches.streams.items()},
        "rows": batches.rows,
        "seconds": round(time.monotonic() - began, 1),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "arguments": {
            k: v for k, v in vars(args).items() if k not in ("text", "model")
        },
        "held_out_nats_per_token": log,
    }
    (args.model / "training.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
