#!/usr/bin/env python3
"""Held-out loss of an interpolated, modified Kneser-Ney 5-gram: the baseline of the bundled model.

Same tokenizer, same training and held-out text. Two baselines: one 5-gram over both corpora, and
one a corpus ("matched", which knows which corpus it is asked about).

Source of the estimator: S. F. Chen and J. Goodman, "An Empirical Study of Smoothing Techniques for
Language Modeling" (1999), section 3: discounts D1, D2, D3+ for each order from counts of counts,
continuation counts below the highest order, and the unigram interpolated with the uniform
distribution.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import arguments
import heldout
import vocabulary

ORDER = 5
BITS = 11  # a token id takes 11 bits (vocabulary 2,048), so that five fit an int64
VOCAB = 1 << BITS


class KneserNey:
    """The estimator. Contexts are padded with bos; eos is predicted like any token."""

    def __init__(self, documents: list[np.ndarray], bos: int, eos: int) -> None:
        self._bos = bos
        padded = [self._pad(np.concatenate([d, [eos]])) for d in documents]
        grams = np.concatenate([self._grams(p, ORDER) for p in padded])
        keys, counts = np.unique(grams, return_counts=True)
        self._levels: dict[int, dict[str, np.ndarray]] = {}
        for order in range(ORDER, 0, -1):
            self._levels[order] = self._level(keys, counts)
            # Dropping the oldest token: how many different tokens came before this shorter gram.
            keys, counts = np.unique(
                keys & ((1 << BITS * (order - 1)) - 1), return_counts=True
            )

    def _pad(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([np.full(ORDER - 1, self._bos), ids]).astype(np.int64)

    @staticmethod
    def _grams(padded: np.ndarray, order: int) -> np.ndarray:
        """Keys of all grams that end at a real token; the newest token is in the low bits."""
        size = len(padded) - ORDER + 1
        key = np.zeros(size, np.int64)
        for back in range(order - 1, -1, -1):
            key = key << BITS | padded[ORDER - 1 - back : ORDER - 1 - back + size]
        return key

    @staticmethod
    def _level(keys: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
        n = [int((counts == k).sum()) for k in range(1, 5)]
        y = n[0] / (n[0] + 2 * n[1]) if n[0] and n[1] else 0.5
        discount = np.zeros(4)
        for k in (1, 2, 3):
            discount[k] = k - (k + 1) * y * n[k] / n[k - 1] if n[k - 1] else 0.0
        discount = np.clip(discount, 0.0, [0.0, 1.0, 2.0, 3.0])
        taken = discount[np.minimum(counts, 3)]
        contexts, first = np.unique(keys >> BITS, return_index=True)
        return {
            "keys": keys,
            "kept": counts - taken,
            "contexts": contexts,
            "total": np.add.reduceat(counts, first).astype(float),
            "freed": np.add.reduceat(taken, first),
        }

    def log_prob(self, ids: np.ndarray) -> np.ndarray:
        """Natural log of the probability of each token of one document, given those before it."""
        padded = self._pad(ids)
        return np.log(
            self._prob(
                {order: self._grams(padded, order) for order in range(1, ORDER + 1)}
            )
        )

    def _prob(self, grams: dict[int, np.ndarray]) -> np.ndarray:
        p = np.full(len(grams[1]), 1.0 / VOCAB)
        for order in range(1, ORDER + 1):
            level, key = self._levels[order], grams[order]
            at = np.minimum(np.searchsorted(level["keys"], key), len(level["keys"]) - 1)
            kept = np.where(level["keys"][at] == key, level["kept"][at], 0.0)
            context = key >> BITS
            at = np.minimum(
                np.searchsorted(level["contexts"], context), len(level["contexts"]) - 1
            )
            seen = level["contexts"][at] == context
            total = np.where(seen, level["total"][at], 1.0)
            p = np.where(seen, (kept + level["freed"][at] * p) / total, p)
        return p

    def check_sums(
        self, ids: np.ndarray, rng: np.random.Generator, contexts: int = 20
    ) -> float:
        """Largest deviation from 1 of the probabilities of all tokens after sampled contexts."""
        padded, worst = self._pad(ids), 0.0
        for at in rng.integers(ORDER - 1, len(padded), contexts):
            grams = {}
            for order in range(1, ORDER + 1):
                key = np.zeros(VOCAB, np.int64)
                for back in range(order - 1, 0, -1):
                    key = key << BITS | padded[at - back]
                grams[order] = key << BITS | np.arange(VOCAB)
            worst = max(worst, abs(self._prob(grams).sum() - 1.0))
        return worst


def main() -> None:
    parser = arguments.parser(
        __doc__, text=arguments.TEXT, model="model folder with a tokenizer"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    args = parser.parse_args()

    documents = heldout.encode(args.text, args.model)
    words = vocabulary.load(args.model)
    corpora = ("austen", "python")
    train = {
        c: [d.ids for d in documents if d.corpus == c and not d.held_out]
        for c in corpora
    }
    for c in corpora:
        print(f"{c}: {sum(map(len, train[c])):,} training tokens")
    joint = KneserNey(train["austen"] + train["python"], words.bos, words.eos)
    held = [d for d in documents if d.held_out]
    worst = joint.check_sums(held[0].ids, np.random.default_rng(0))
    if not worst < 1e-9:
        raise SystemExit(f"probabilities do not sum to 1: off by {worst}")
    print(f"sums of probabilities differ from 1 by at most {worst:.1e}")
    result = {}
    for label, models in (
        ("joint", dict.fromkeys(corpora, joint)),
        ("matched", {c: KneserNey(train[c], words.bos, words.eos) for c in corpora}),
    ):
        nats = {
            c: -sum(models[c].log_prob(d.ids).sum() for d in held if d.corpus == c)
            for c in corpora
        }
        result[label] = heldout.summary(documents, nats)
        for group, row in result[label].items():
            print(
                f"{label:8s} {group:14s} {row['tokens']:8,d} tokens"
                f" {row['nats_per_token']:.4f} nats/token {row['bits_per_byte']:.4f} bits/byte"
            )
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
