"""A model folder's vocabulary: ``tokenizer.json``, or ``tiktoken.model`` with its special tokens."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

# Kimi's splitting rule: runs of Han characters; words of one case pattern with one leading non-letter
# and a trailing contraction; up to three digits; punctuation runs; line ends; spaces.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_SPLIT = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


class _Encoder(Protocol):
    def __call__(self, texts: list[str]) -> list[list[int]]: ...


class _Decoder(Protocol):
    def __call__(self, ids: list[int]) -> str: ...


@dataclass(frozen=True)
class Vocabulary:
    """Encodes plain text; special tokens are never read from it."""

    bos: int
    eos: int
    pad: int
    encoder: _Encoder
    decode: _Decoder

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Token ids of each text, int64, without bos and eos."""
        return [np.asarray(ids, np.int64) for ids in self.encoder(texts)]


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read ``tiktoken.model``: one token a line, base64, a space and its rank."""
    ranks = {}
    for line in path.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return ranks


def tiktoken_encoding(folder: Path):
    """The folder's tiktoken ``Encoding``, special tokens included."""
    import tiktoken

    settings = json.loads((folder / "tokenizer_config.json").read_text())
    special = {
        entry["content"]: int(i)
        for i, entry in settings["added_tokens_decoder"].items()
    }
    return tiktoken.Encoding(
        folder.name,
        pat_str=KIMI_SPLIT,
        mergeable_ranks=read_ranks(folder / "tiktoken.model"),
        special_tokens=special,
    )


def load(folder: Path) -> Vocabulary:
    """Load whichever of the two forms the folder has."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    names = [settings[f"{k}_token"] for k in ("bos", "eos", "pad")]
    if (folder / "tiktoken.model").exists():
        encoding = tiktoken_encoding(folder)
        ids = [encoding.encode_single_token(n) for n in names]
        return Vocabulary(
            *ids,
            lambda texts: encoding.encode_ordinary_batch(texts, num_threads=2),
            encoding.decode,
        )
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.token_to_id(n) for n in names]
    return Vocabulary(
        *ids,
        lambda texts: [
            e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)
        ],
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )
