#!/usr/bin/env python3
"""Check a trained folder against Hugging Face transformers and write samples.

Loads the folder with the family's class and compares its logits with the training forward, its
step-by-step logits with its own prefill, and the held-out losses; then generates text. A folder
without a tokenizer (a recall model) is compared on random ids only. Needs PyTorch and transformers.
Writes ``check.json`` and ``samples.txt`` to the output folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

import arguments
import families
import heldout
import scoring
import vocabulary

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


def relative(a: Tensor, b: Tensor) -> dict[str, float]:
    """Largest absolute and norm-wise relative difference."""
    return {
        "max_abs": float((a - b).abs().max()),
        "relative": float((a - b).double().norm() / b.double().norm()),
    }


def first_repeat(ids: list[int], span: int = 24) -> int | None:
    """Position at which the last ``span`` tokens have all been seen in this order before."""
    seen = set()
    for end in range(span, len(ids) + 1):
        gram = tuple(ids[end - span : end])
        if gram in seen:
            return end
        seen.add(gram)
    return None


class CountingCache(DynamicCache):
    """A cache that knows its length without attention layers too, where DynamicCache raises."""

    tokens = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read so far."""
        return self.tokens

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Keys that a mask covers, and the first one's position."""
        return self.tokens + query_length, 0


def read_whole(model: torch.nn.Module, reference: Tensor, x: Tensor) -> Tensor:
    """Logits of one token after the other through the model's cache, as many as ``reference`` has."""
    cache, steps = CountingCache(config=model.config), []
    for t in range(reference.shape[1]):
        out = model(x[:, t : t + 1], past_key_values=cache, use_cache=True)
        cache.tokens = t + 1
        steps.append(out.logits)
    return torch.cat(steps, 1)


@torch.no_grad()
def compare(
    plain: torch.nn.Module, theirs: torch.nn.Module, x: Tensor
) -> dict[str, dict[str, float]]:
    """Training forward against transformers, and transformers' steps against its prefill."""
    reference = theirs(x, use_cache=False).logits
    start = reference[:2, :128]
    return {
        "training_forward_against_transformers_f32": relative(
            plain.logits(x), reference
        ),
        "transformers_steps_against_prefill_f32": relative(
            read_whole(theirs, start, x[:2]), start
        ),
    }


def saved(model: torch.nn.Module, folder: Path) -> dict[str, object]:
    """What transformers writes for this model, and which names differ from the folder's."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        shapes = []
        for place in (Path(scratch), folder):
            with safe_open(place / "model.safetensors", "pt") as f:
                shapes.append({k: f.get_slice(k).get_shape() for k in f.keys()})  # noqa: SIM118
        config = json.loads((Path(scratch) / "config.json").read_text())
    return {
        "names_saved_by_transformers": sorted(shapes[0])[:6],
        "names_and_shapes_are_those_of_the_folder": shapes[0] == shapes[1],
        "config_saved_by_transformers": config,
    }


def main() -> None:
    parser = arguments.parser(
        __doc__,
        text=arguments.TEXT,
        model="trained folder",
        out="folder to write to, made if absent",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument(
        "--brief",
        type=int,
        default=1,
        metavar="N",
        help="compare the losses on every N-th held-out window only",
    )
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, object] = {}

    theirs, info = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, output_loading_info=True
    )
    theirs = theirs.to(args.device).eval()
    report["class"] = type(theirs).__name__
    report["loading"] = {
        k: sorted(map(str, v)) for k, v in info.items() if k.endswith("keys")
    }
    # In training mode, for KDA's block form; there is no dropout to switch off.
    plain = families.load(args.model).to(args.device).train()
    report |= saved(theirs, args.model)

    texts: list[str] = []
    if (args.model / "tokenizer_config.json").exists():
        words = vocabulary.load(args.model)
        documents = heldout.encode(args.text, args.model)
        held = next(d for d in documents if d.held_out and len(d.ids) > 2048)
        x = heldout.windows(held.ids, 1024, words.bos)[0][:4]
        report |= compare(plain, theirs, torch.from_numpy(x).to(args.device))

        def losses(
            logits_of: Callable[[Tensor], Tensor], length: int, rows: int, share: int
        ) -> dict[str, dict[str, float]]:
            nats, count = scoring.nats(
                logits_of, documents, words.bos, args.device, length, rows, share
            )
            if share == 1:
                return heldout.summary(documents, nats)
            return {
                c: {"tokens": count[c], "nats_per_token": nats[c] / count[c]}
                for c in nats
            }

        found = {"training_forward_f32_1024": losses(plain.logits, 1024, 8, 1)}
        if args.brief > 1:
            name = f"training_forward_f32_1024_every_{args.brief}"
            found[name] = losses(plain.logits, 1024, 8, args.brief)
        name = f"training_forward_f32_4096_every_{args.brief}"
        found[name] = losses(plain.logits, 4096, 2, args.brief)
        name = f"transformers_f32_1024_every_{args.brief}"
        found[name] = losses(lambda i: theirs(i).logits, 1024, 8, args.brief)
        half = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
        half = half.to(args.device).eval()
        name = f"transformers_bf16_1024_every_{args.brief}"
        found[name] = losses(lambda i: half(i).logits, 1024, 8, args.brief)
        report["held_out"] = found

        repeats = {}
        for prompt in PROMPTS:
            begin = [words.bos, *words.encode([prompt])[0].tolist()]
            ids = torch.tensor([begin], device=args.device)
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
                    pad_token_id=words.pad,
                    **options,
                )[0].tolist()
                texts.append(f"===== {label}: {prompt!r}\n{words.decode(out)}\n")
                if label == "greedy":
                    repeats[prompt] = first_repeat(out)
        report["greedy_first_repeat_of_24_tokens"] = repeats
    else:
        torch.manual_seed(7)
        x = torch.randint(plain.config.vocab_size, (4, 1024), device=args.device)
        report |= compare(plain, theirs, x)
    (args.out / "samples.txt").write_text("\n".join(texts))
    (args.out / "check.json").write_text(
        json.dumps(report, indent=1, default=str) + "\n"
    )
    print("\n".join(texts))
    print(json.dumps(report, indent=1, default=str))


if __name__ == "__main__":
    main()
