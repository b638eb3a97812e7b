"""The recall task: what its tokens mean, training rows, and prompts for tests.

``recall.py`` says what a prompt asks, ``recall.json`` how its cases are read.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

VOCAB = 96
PAD, START, END, QUERY = 0, 1, 2, 3
FIRST_FILLER, FILLERS = 16, 16
FIRST_KEY, KEYS = 32, 32
FIRST_VALUE, VALUES = 64, 32
MOST_PAIRS = 16
DISTANCES = (100, 500, 2000, 8000)


def filler(start: int, count: int) -> list[int]:
    """The filler of a case: a linear congruential generator's high bits."""
    tokens, x = [], start
    for _ in range(count):
        tokens.append(FIRST_FILLER + (x >> 16) % FILLERS)
        x = (1103515245 * x + 12345) % (1 << 31)
    return tokens


def expand(case: dict) -> list[int]:
    """The prompt of a case, as :func:`description` says."""
    pairs, ask = case["pairs"], case["ask"]
    count = case["distance"] - 2 * (len(pairs) - ask)
    return [
        START,
        *(t for pair in pairs for t in pair),
        *filler(case["filler_start"], count),
        QUERY,
        pairs[ask][0],
    ]


def is_filler(ids: Tensor) -> Tensor:
    """Mask of the filler, of the shape of ``ids``."""
    return (ids >= FIRST_FILLER) & (ids < FIRST_FILLER + FILLERS)


def draw_pairs(rng: np.random.Generator, rows: int, pairs: int) -> np.ndarray:
    """Random pairs, [rows, pairs, 2]: keys without repetition, values independent."""
    keys = rng.permuted(np.tile(np.arange(KEYS), (rows, 1)), axis=1)[:, :pairs]
    values = rng.integers(0, VALUES, (rows, pairs))
    return np.stack([FIRST_KEY + keys, FIRST_VALUE + values], -1)


def batch(
    rng: np.random.Generator, rows: int, length: int, long: bool
) -> tuple[Tensor, Tensor]:
    """Training rows [rows, length] and their targets, -100 where nothing is asked.

    After the filler every pair is asked for, in random order and without showing the answers; each
    step has one number of pairs and one number of filler tokens.
    """
    pairs = int(rng.integers(MOST_PAIRS // 4, MOST_PAIRS + 1))
    most = length - 1 - 4 * pairs
    count = most if long else int(rng.integers(0, most + 1))
    shown = draw_pairs(rng, rows, pairs)
    asked = rng.permuted(np.tile(np.arange(pairs), (rows, 1)), axis=1)
    asked = np.take_along_axis(shown, asked[..., None], 1)
    questions = np.stack([np.full((rows, pairs), QUERY), asked[..., 0]], -1)
    x = np.full((rows, length), PAD)
    y = np.full((rows, length), -100)
    x[:, 0] = START
    at = 1 + 2 * pairs
    x[:, 1:at] = shown.reshape(rows, -1)
    x[:, at : at + count] = FIRST_FILLER + rng.integers(0, FILLERS, (rows, count))
    at += count
    x[:, at : at + 2 * pairs] = questions.reshape(rows, -1)
    y[:, at + 1 : at + 2 * pairs : 2] = asked[..., 1]
    return torch.from_numpy(x), torch.from_numpy(y)


def cases(seed: int, each: int) -> list[dict[str, object]]:
    """Prompts for tests, ``each`` for every distance."""
    rng = np.random.default_rng(seed)
    result = []
    for distance in DISTANCES:
        for i in range(each):
            pairs = draw_pairs(rng, 1, MOST_PAIRS)[0].tolist()
            ask = (5 * i + 3) % MOST_PAIRS
            result.append(
                {
                    "pairs": pairs,
                    "ask": ask,
                    "filler_start": int(rng.integers(1 << 31)),
                    "distance": distance,
                    "expect": pairs[ask][1],
                }
            )
    return result


def description() -> dict[str, object]:
    """What a reader of ``recall.json`` needs to expand its cases."""
    return {
        "tokens": {
            "pad": PAD,
            "start": START,
            "query": QUERY,
            "first_filler": FIRST_FILLER,
            "fillers": FILLERS,
            "first_key": FIRST_KEY,
            "keys": KEYS,
            "first_value": FIRST_VALUE,
            "values": VALUES,
        },
        "prompt": "[start] + pairs flattened + filler + [query, pairs[ask][0]]; "
        "the next token should be expect",
        "filler": "distance - 2 * (number of pairs - ask) tokens; x = filler_start; each is "
        "first_filler + (x >> 16) % fillers, then x = (1103515245 * x + 12345) % 2147483648",
        "chance": 1.0 / VALUES,
    }
