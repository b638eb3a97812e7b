#!/usr/bin/env python3
"""Write a byte-level BPE ``tokenizer.json`` again as ``tiktoken.model``, the form of the Kimi family.

Ranks are the ids without the special tokens, which stand first in ``tokenizer.json`` and last here:
[BOS], [EOS] and [PAD] follow the ranks. The merges are the same, the splitting rule is not: a folder
with ``tiktoken.model`` has no place for one, its readers apply Kimi's. Needs ``tokenizers``; with the
text's folder given, also ``tiktoken`` and ``regex``, and checks the result.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers

import arguments
import corpus
import vocabulary

SPECIAL = ("[BOS]", "[EOS]", "[PAD]")


def byte_of() -> dict[str, int]:
    """The byte behind each character of byte-level BPE: printable ones themselves, others from U+0100."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in shown]
    table = {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(rest)}
    if set(table) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise ValueError("the byte alphabet differs from that of tokenizers")
    return table


def convert(source: Path, out: Path) -> None:
    """Write ``tiktoken.model`` and ``tokenizer_config.json``."""
    raw = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    special = {t["id"] for t in raw["added_tokens"]}
    table = byte_of()
    ordered = sorted((i, t) for t, i in raw["model"]["vocab"].items())
    tokens = [bytes(table[c] for c in t) for i, t in ordered if i not in special]
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)]
    (out / "tiktoken.model").write_text("".join(lines))
    flags = {"lstrip": False, "normalized": False, "rstrip": False}
    flags |= {"single_word": False, "special": True}
    settings = {
        "added_tokens_decoder": {
            str(len(tokens) + i): {"content": name, **flags}
            for i, name in enumerate(SPECIAL)
        },
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "pad_token": SPECIAL[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1048576,
        "tokenizer_class": "TikTokenTokenizer",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def pieces(text: str) -> list[str]:
    """Split by Kimi's rule with the ``regex`` package, which has class intersections too."""
    import regex

    return regex.findall(vocabulary.KIMI_SPLIT, text, flags=regex.V1)


def check(source: Path, out: Path, text: Path) -> None:
    """Compare with the source's merges on the corpora, and report the size of both encodings."""
    documents = corpus.load(text)
    texts = [d.text for d in documents if d.held_out]
    new, old = vocabulary.load(out), vocabulary.load(source)
    encoding = vocabulary.tiktoken_encoding(out)
    merges = Tokenizer.from_file(str(source / "tokenizer.json"))
    merges.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    words = sorted({p for t in texts for p in pieces(t)})
    shift = len(SPECIAL)
    by_merges = merges.encode_batch(words, add_special_tokens=False)
    by_rank = new.encode(words)
    different = sum(
        [i - shift for i in a.ids] != b.tolist()
        for a, b in zip(by_merges, by_rank, strict=True)
    )
    for t in texts:
        ids = new.encode([t])[0].tolist()
        if encoding.decode(ids) != t:
            raise SystemExit("a text does not survive encoding and decoding")
        split = [i for p in pieces(t) for i in encoding.encode_ordinary(p)]
        if split != ids:
            raise SystemExit("regex and tiktoken split a text differently")
    print(
        f"{len(texts)} held-out texts survive; {different} of {len(words)} different pieces are"
        f" merged differently; {sum(map(len, new.encode(texts))):,} tokens, with the source's"
        f" splitting {sum(map(len, old.encode(texts))):,}"
    )


def main() -> None:
    parser = arguments.parser(
        __doc__, source="folder with tokenizer.json", model="folder to write to"
    )
    parser.add_argument("--text", type=Path, help=arguments.TEXT)
    args = parser.parse_args()
    convert(args.source, args.model)
    if args.text:
        check(args.source, args.model, args.text)


if __name__ == "__main__":
    main()
