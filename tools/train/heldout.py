"""Which held-out tokens are scored, and in which windows: the same for every model compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import corpus
import vocabulary


@dataclass(frozen=True)
class EncodedDocument:
    """A document as token ids, without bos and eos, and its size in bytes."""

    corpus: str
    name: str
    held_out: bool
    ids: np.ndarray
    bytes: int


def encode(text: Path, model: Path) -> list[EncodedDocument]:
    """Encode every document of the corpora with the model folder's tokenizer."""
    documents = corpus.load(text)
    ids = vocabulary.load(model).encode([d.text for d in documents])
    return [
        EncodedDocument(d.corpus, d.name, d.held_out, i, len(d.text.encode()))
        for d, i in zip(documents, ids, strict=True)
    ]


def windows(
    ids: np.ndarray, length: int, bos: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut one document into overlapping windows so that each token is scored once.

    Every token is predicted from bos and all earlier tokens of its window: at least ``length/2``
    of them where the document has that many.

    Parameters
    ----------
    ids
        Token ids of one document, without bos.
    length
        Window length in tokens; even.
    bos
        Id of the token that stands before the document.

    Returns
    -------
    inputs, targets : ndarray of int64, [windows, length]
    scored : ndarray of bool, [windows, length]
        True where the target is counted. The rest is padding or scored in an earlier window.
    """
    stream = np.concatenate([[bos], ids])
    inputs, targets, scored = [], [], []
    done, start = 0, 0
    while done < len(ids):
        end = min(start + length, len(ids))
        x = np.zeros(length, np.int64)
        y = np.zeros(length, np.int64)
        s = np.zeros(length, bool)
        x[: end - start] = stream[start:end]
        y[: end - start] = stream[start + 1 : end + 1]
        s[done - start : end - start] = True
        inputs.append(x)
        targets.append(y)
        scored.append(s)
        done, start = end, start + length // 2
    return np.stack(inputs), np.stack(targets), np.stack(scored)


def summary(
    documents: list[EncodedDocument], nats: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Turn summed losses into nats a token and bits a byte, per corpus and for both.

    Parameters
    ----------
    documents
        All documents; the held-out ones are counted.
    nats
        Per corpus, the sum of -ln p over all held-out tokens.
    """
    result = {}
    for group in (("austen",), ("python",), ("austen", "python")):
        held = [d for d in documents if d.held_out and d.corpus in group]
        total = sum(nats[c] for c in group)
        result["+".join(group)] = {
            "tokens": sum(len(d.ids) for d in held),
            "bytes": sum(d.bytes for d in held),
            "nats_per_token": total / sum(len(d.ids) for d in held),
            "bits_per_byte": total / np.log(2.0) / sum(d.bytes for d in held),
        }
    return result
