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

import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import arguments
import families
import recall_task as task
import recall_training
from kimi_linear import KimiLinearConfig
from nemotron_h import NemotronHConfig
from qwen3_5 import Qwen35Config

_SIZES = {"vocab_size": task.VOCAB, "hidden_size": 64, "intermediate_size": 128}
_DELTA = {
    **_SIZES,
    "layer_types": ("linear_attention",) * 2,
    "bos_token_id": task.START,
    "eos_token_id": task.END,
    "pad_token_id": task.PAD,
}
RULES: dict[str, tuple[str, object]] = {
    "mamba2": (
        "nemotron_h",
        NemotronHConfig(hybrid_override_pattern="M-M-", mamba_num_heads=2, **_SIZES),
    ),
    "gdn": (
        "qwen3_5",
        Qwen35Config(linear_num_value_heads=1, chunk_size=64, **_DELTA),
    ),
    "kda": ("kimi_linear", KimiLinearConfig(linear_num_heads=1, **_DELTA)),
}
# Steps x rows x tokens a row, one stage after the other: short first, then further and further apart.
STAGES = "300x24x128 100x12x256 40x6x1024 25x2x8192"


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
    start = np.full((rows, 1), task.START)
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
    question = torch.stack([torch.full_like(keys, task.QUERY), keys], 1)
    hidden = model(question, None, caches)[:, -1]
    return model.lm_head(hidden).float().view(rows, pairs, -1)


def measure(model: nn.Module, seed: int, rows: int) -> list[dict[str, float]]:
    """Recall at each distance of the nearest pair, with the state and with the state set to zero."""
    rng = np.random.default_rng(seed)
    table = []
    for distance in task.DISTANCES:
        shown = task.draw_pairs(rng, rows, task.MOST_PAIRS)
        between = task.FIRST_FILLER + rng.integers(
            0, task.FILLERS, (rows, distance - 2)
        )
        row = {"distance": distance, "questions": rows * task.MOST_PAIRS}
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


@torch.no_grad()
def check_cases(model: nn.Module, listed: list[dict]) -> dict[str, float]:
    """Share of the listed cases that the whole-prompt forward answers, and its least margin."""
    right, margins = 0, []
    for case in listed:
        tokens = torch.tensor([task.expand(case)])
        logits = model.logits(tokens)[0, -1]
        right += int(logits.argmax()) == case["expect"]
        others = logits.clone()
        others[case["expect"]] = -torch.inf
        margins.append(float(logits[case["expect"]] - others.max()))
    return {"right": right / len(listed), "least_margin": min(margins)}


def main() -> None:
    parser = arguments.parser(__doc__)
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
        recall_training.train(model, args)
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
    listed = task.cases(args.seed + 2, 10)
    found = check_cases(model.eval(), listed)
    print("cases:", json.dumps(found), flush=True)
    head = {
        **task.description(),
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
