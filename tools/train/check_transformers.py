#!/usr/bin/env python3
"""Check a trained folder against Hugging Face transformers and write samples.

Loads the folder with ``NemotronHForCausalLM`` and compares its logits with the training forward,
its step-by-step logits with its own prefill, and the held-out losses; then generates text. Needs
PyTorch, transformers and one GPU. Writes ``check.json`` and ``samples.txt`` to the output folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, NemotronHForCausalLM

import heldout
from model import ModelConfig, NemotronH

PROMPTS = (
    "It was a truth universally",
    "Elizabeth could not help",
    "CHAPTER V\n\nMr. Knightley",
    '"I am very sorry," said Anne,',
    ":mod:`json` --- JSON encoder and decoder\n",
    ".. function:: open(file, mode='r'",
    "The following example shows how to",
    ">>> import collections\n>>> ",
)


def load_plain(folder: Path) -> NemotronH:
    """Load the folder's weights into the training model, in float32."""
    raw = json.loads((folder / "config.json").read_text())
    fields = ModelConfig.__dataclass_fields__
    model = NemotronH(ModelConfig(**{k: raw[k] for k in fields}))
    model.load_state_dict(
        {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    )
    return model.cuda().eval()


def relative(a: Tensor, b: Tensor) -> dict[str, float]:
    """Largest absolute and norm-wise relative difference."""
    return {
        "max_abs": float((a - b).abs().max()),
        "relative": float((a - b).double().norm() / b.double().norm()),
    }


@torch.no_grad()
def nats(
    logits_of: Callable[[Tensor], Tensor],
    documents: list[heldout.EncodedDocument],
    length: int,
    rows: int,
) -> dict[str, float]:
    """Sum -ln p of the held-out tokens, per corpus, for a function from ids to logits."""
    result = {}
    for name in ("austen", "python"):
        parts = [
            heldout.windows(d.ids, length)
            for d in documents
            if d.held_out and d.corpus == name
        ]
        x, y, s = (
            torch.from_numpy(np.concatenate(p)).cuda() for p in zip(*parts, strict=True)
        )
        total = 0.0
        for at in range(0, len(x), rows):
            cut = slice(at, at + rows)
            loss = F.cross_entropy(
                logits_of(x[cut]).float().flatten(0, 1),
                y[cut].flatten(),
                reduction="none",
            )
            total += float(loss[s[cut].flatten()].double().sum())
        result[name] = total
    return result


def first_repeat(ids: list[int], span: int = 24) -> int | None:
    """Position at which the last ``span`` tokens have all been seen in this order before."""
    seen = set()
    for end in range(span, len(ids) + 1):
        gram = tuple(ids[end - span : end])
        if gram in seen:
            return end
        seen.add(gram)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("text", type=Path, help="output folder of fetch_text.py")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--brief", action="store_true", help="skip the slow losses")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, object] = {}

    documents = heldout.encode(args.text, args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    report["tokenizer"] = {
        "class": type(tokenizer).__name__,
        "ids": tokenizer("It's 42\n    return x").input_ids,
        "ids_without_special": tokenizer(
            "It's 42\n    return x", add_special_tokens=False
        ).input_ids,
    }
    theirs, info = NemotronHForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, output_loading_info=True
    )
    theirs = theirs.cuda().eval()
    report["loading"] = {
        k: sorted(map(str, v)) for k, v in info.items() if k.endswith("keys")
    }
    plain = load_plain(args.model)

    held = next(d for d in documents if d.held_out and len(d.ids) > 2048)
    x = torch.from_numpy(heldout.windows(held.ids, 1024)[0][:4]).cuda()
    with torch.no_grad():
        reference = theirs(x).logits
        report["training_forward_against_transformers_f32"] = relative(
            plain.logits(x), reference
        )
        cache, steps = None, []
        for t in range(128):
            out = theirs(x[:2, t : t + 1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
        report["transformers_steps_against_prefill_f32"] = relative(
            torch.cat(steps, 1), reference[:2, :128]
        )

    with tempfile.TemporaryDirectory() as scratch:
        theirs.save_pretrained(scratch)
        with safe_open(Path(scratch) / "model.safetensors", "pt") as f:
            report["names_saved_by_transformers"] = sorted(f.keys())[:6]
        report["config_saved_by_transformers"] = json.loads(
            (Path(scratch) / "config.json").read_text()
        )

    def losses(
        logits_of: Callable[[Tensor], Tensor], length: int, rows: int
    ) -> dict[str, dict[str, float]]:
        return heldout.summary(documents, nats(logits_of, documents, length, rows))

    report["held_out"] = {"training_forward_f32_1024": losses(plain.logits, 1024, 32)}
    if not args.brief:
        report["held_out"]["training_forward_f32_4096"] = losses(plain.logits, 4096, 8)
        report["held_out"]["transformers_f32_1024"] = losses(
            lambda ids: theirs(ids).logits, 1024, 8
        )
        half = (
            NemotronHForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
            .cuda()
            .eval()
        )
        report["held_out"]["transformers_bf16_1024"] = losses(
            lambda ids: half(ids).logits, 1024, 8
        )

    texts, repeats = [], {}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids.cuda()
        for label, options in (
            (
                "temperature 0.8",
                {"do_sample": True, "temperature": 0.8, "top_p": 1.0, "top_k": 0},
            ),
            ("greedy", {"do_sample": False}),
        ):
            torch.manual_seed(7)
            out = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=args.new_tokens,
                pad_token_id=0,
                **options,
            )[0].tolist()
            texts.append(
                f"===== {label}: {prompt!r}\n{tokenizer.decode(out, skip_special_tokens=False)}\n"
            )
            if label == "greedy":
                repeats[prompt] = first_repeat(out)
    report["greedy_first_repeat_of_24_tokens"] = repeats
    (args.out / "samples.txt").write_text("\n".join(texts))
    (args.out / "check.json").write_text(
        json.dumps(report, indent=1, default=str) + "\n"
    )
    print("\n".join(texts))
    print(json.dumps(report, indent=1, default=str))


if __name__ == "__main__":
    main()
