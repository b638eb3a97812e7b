"""Writes tests/model/data/tokenizer_variants.jsonl: one small tokenizer a line with texts and their ids.

Each line is {"name", "tokenizer", "cases": [[text, ids], ...], "decoded": [[ids, text], ...]}, the ids
with special tokens, the text without. The tokenizers turn one part of the file after the other; ids are
from the package ``tokenizers`` (0.23.3 was used):

    python3 tests/model/tokenizer_variants.py
"""

import json
import pathlib
import random
import unicodedata

from tokenizers import Tokenizer

OUT = pathlib.Path(__file__).resolve().parent / "data" / "tokenizer_variants.jsonl"
RANDOM = random.Random(20240607)
CASES = 60

SPLIT_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Kimi's, with intersections of classes.
KIMI_WORDS = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SNIPPETS = [
    " ", "  ", "\n", "\t", "\u3000", "\u0085", "\u180e", "don't", "I'LL", "'\u017f", "a1b22c333d4444",
    "\u0664\u0665", "\u00bd", "e\u0301", "\u0316\u0301", "\u1100\u1161\u11a8", "\uac00\u11a7", "\u0958",
    "aaaa", "a,b.c--d", "<s>", "</s>", "<|x|>", "<|x|>y", "\u00e9", "word", "123", "ab", "z\U0001f600",
    "\U0001e030", "\u4e2d\u6587", "\r\n\r\n", "\u200d", "_",
]


def byte_letters() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len([b for b in range(byte) if b not in printable])))
    return [letters[b] for b in range(256)]


LETTERS = byte_letters()


def text() -> str:
    parts = []
    for _ in range(RANDOM.randrange(1, 9)):
        kind = RANDOM.random()
        if kind < 0.6:
            parts.append(RANDOM.choice(SNIPPETS))
        elif kind < 0.8:
            parts.append(RANDOM.choice("abcdefghijklmnopqrstuvwxyzABC0123 "))
        else:
            point = RANDOM.choice([0x80, 0x800, 0x10000, 0x20000]) + RANDOM.randrange(0x700)
            parts.append(chr(point))
    return "".join(parts)


def learn_merges(count: int) -> list[tuple[str, str]]:
    """Pairs by frequency over random texts, across all boundaries, so that a wrong split shows."""
    lines = [[LETTERS[b] for b in text().encode()] for _ in range(1500)]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: dict[tuple[str, str], int] = {}
        for line in lines:
            for pair in zip(line, line[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for line in lines:
            at = 0
            while at + 1 < len(line):
                if (line[at], line[at + 1]) == best:
                    line[at:at + 2] = [best[0] + best[1]]
                at += 1
    return merges


MERGES = learn_merges(120)
VOCAB = {token: i for i, token in enumerate([*LETTERS, *(a + b for a, b in MERGES)])}


def byte_level(prefix: bool = False, regex: bool = False) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern: str, behavior: str = "Isolated", invert: bool = False, kind: str = "Regex") -> dict:
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps: dict) -> dict:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def tokenizer(pre: dict, normalizer=None, added=(), post=None, decoder=None, vocab=None, merges=None,
              **model) -> dict:
    vocab = VOCAB if vocab is None else vocab
    tokens, next_id = [], len(vocab)
    for token in added:
        entry = {"id": vocab.get(token["content"], next_id), "single_word": False, "lstrip": False,
                 "rstrip": False, "normalized": False, "special": False} | token
        next_id += token["content"] not in vocab
        tokens.append(entry)
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
        "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post,
        "decoder": decoder or byte_level(True, True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": vocab,
                  "merges": [list(m) for m in MERGES] if merges is None else merges} | model,
    }


def variants():
    nfc = {"type": "NFC"}
    yield "gpt2", tokenizer(byte_level(False, True))
    yield "gpt2_prefix_space", tokenizer(byte_level(True, True))
    yield "prefix_space_only", tokenizer(byte_level(True, False))
    yield "no_split", tokenizer(byte_level())
    yield "possessive", tokenizer(sequence(split(SPLIT_WORDS), byte_level()))
    yield "han", tokenizer(sequence(split(r"[\p{Han}]+|\w+|\W"), byte_level()))
    yield "lines", tokenizer(sequence(split("^.|.$"), byte_level()))
    yield "empty_matches", tokenizer(sequence(split("a*|x?"), byte_level()))
    yield "digits_single", tokenizer(sequence({"type": "Digits", "individual_digits": True},
                                              byte_level(False, True)))
    yield "digits_runs", tokenizer(sequence({"type": "Digits", "individual_digits": False},
                                            byte_level(False, True)))
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in (False, True):
            yield f"{behavior}_{invert}", tokenizer(
                sequence(split(r"[ ,.\-]", behavior, invert), byte_level()))
        yield f"{behavior}_text", tokenizer(sequence(split("a", behavior, False, "String"), byte_level(True)))
    yield "nfc", tokenizer(byte_level(False, True), {"type": "Sequence", "normalizers": [nfc]})
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "end", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]},
                           "end": {"id": "end", "ids": [3, 4], "tokens": ["x", "y"]}},
    }
    chain = {"type": "Sequence", "processors": [byte_level(), template]}
    contents = ["<s>", "</s>", "<|x|>", "<|x|>y", "\u00e9", "word", "123", "\u3000", "ab", "  ", "a", "\u0958"]
    flags = ["single_word", "lstrip", "rstrip", "normalized"]
    for number in range(10):
        added, seen = [], set()
        for content in RANDOM.sample(contents, RANDOM.randrange(4, len(contents))):
            token = {"content": content} | {flag: RANDOM.random() < 0.35 for flag in flags}
            token["special"] = not token["normalized"] and RANDOM.random() < 0.5
            key = (unicodedata.normalize("NFC", content), token["normalized"])
            if key not in seen:
                seen.add(key)
                added.append(token)
        yield f"added_{number}", tokenizer(byte_level(number % 3 == 0, True), nfc if number % 2 else None,
                                           added, [None, template, chain][number % 3])
    yield "ignore_merges", tokenizer(byte_level(False, True), ignore_merges=True,
                                     vocab=VOCAB | {"\u0120word": len(VOCAB), "abab": len(VOCAB) + 1})
    yield "merges_as_lines", tokenizer(byte_level(False, True),
                                       merges=["#version: 0.2", *(f"{a} {b}" for a, b in MERGES)])
    lost = {LETTERS[b] for b in (0x61, 0x20, 0xC3, 0x31, 0x32, 0x33)}
    kept = [t for t in ["<unk>", *VOCAB] if t == "<unk>" or not lost & set(t)]
    small = {token: i for i, token in enumerate(kept)}
    merges = [[a, b] for a, b in MERGES if a + b in small]
    yield "bytes_missing", tokenizer(byte_level(False, True), vocab=small, merges=merges)
    yield "unknown", tokenizer(byte_level(False, True), vocab=small, merges=merges, unk_token="<unk>")
    yield "unknown_fused", tokenizer(byte_level(False, True), vocab=small, merges=merges,
                                     unk_token="<unk>", fuse_unk=True)
    yield "class_intersection", tokenizer(sequence(split(KIMI_WORDS), byte_level()))


def main() -> None:
    with OUT.open("w") as out:
        for name, parts in variants():
            reference = Tokenizer.from_str(json.dumps(parts))
            texts = ["", " ", *(text() for _ in range(CASES))]
            cases = [[t, reference.encode(t).ids] for t in texts]
            size = len(parts["model"]["vocab"]) + len(parts["added_tokens"])
            lists = [[RANDOM.randrange(size + 2) for _ in range(RANDOM.randrange(1, 8))] for _ in range(20)]
            decoded = [[ids, reference.decode(ids)] for ids in lists]
            line = {"name": name, "tokenizer": parts, "cases": cases, "decoded": decoded}
            out.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
