#!/usr/bin/env python3
"""The fitted polynomials of src/backend/cpu/simd/elementary.hpp.

    tools/fit_elementary.py

fits 2^r on |r| <= 1/2 by 1 + r p(r), p of degree 5, and log(1 + y) on 0..1 by y + y^2 q(y), q of
degree 8, so that the largest relative error is smallest; prints the coefficients, which are f32,
with their errors; and fails where the source has others. Needs numpy.

Rounding all coefficients of the best polynomial to f32 would cost a factor of 10. Therefore they
are rounded one after the other, those of low powers first, and the others are fitted again each
time; at the end each is tried one and two steps up and down.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).parents[1] / "src/backend/cpu/simd/elementary.hpp"
POINTS = 20000


def value(x: np.ndarray, coefficients: list[float]) -> np.ndarray:
    """The sum of coefficients[i] x^i."""
    total = np.zeros_like(x)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def minimax(x: np.ndarray, wanted: np.ndarray, weight: np.ndarray, terms: int) -> np.ndarray:
    """Coefficients of the polynomial whose largest weight * |wanted - polynomial| on x is smallest.

    Remez' exchange of all points: the error takes its largest value terms + 1 times with
    alternating signs, so the points where it does are guessed, solved for and corrected. That
    circles without an end where the wanted function jumps, as what remains of a rounding does at
    x = 0; then the best polynomial on the way is good enough.
    """
    best, smallest = np.zeros(terms), np.inf
    k = np.arange(terms + 1)
    at = np.rint((1 - np.cos(np.pi * (k + 0.5) / (terms + 1))) / 2 * (len(x) - 1)).astype(int)
    for _ in range(30):
        powers = np.vander(x[at], terms, increasing=True)
        solved = np.linalg.solve(np.c_[powers, (-1.0) ** k / weight[at]], wanted[at])
        error = weight * (wanted - value(x, list(solved[:-1])))
        if np.max(np.abs(error)) < smallest:
            best, smallest = solved[:-1], np.max(np.abs(error))
        if smallest <= abs(solved[-1]) * (1 + 1e-6):
            break
        runs = np.split(np.arange(len(x)), np.flatnonzero(np.diff(np.sign(error))) + 1)
        peaks = [run[np.argmax(np.abs(error[run]))] for run in runs]
        while len(peaks) > terms + 1:
            heights = np.abs(error[peaks])
            if len(peaks) == terms + 2:
                peaks.pop(0 if heights[0] < heights[-1] else -1)
            else:  # two neighbours, so that signs still alternate
                pair = int(np.argmin(np.maximum(heights[:-1], heights[1:])))
                del peaks[pair : pair + 2]
        if len(peaks) < terms + 1:
            break
        at = np.array(peaks)
    return best


def largest(x: np.ndarray, wanted: np.ndarray, weight: np.ndarray, c: list[float]) -> float:
    return float(np.max(weight * np.abs(wanted - value(x, c))))


def fit(x: np.ndarray, wanted: np.ndarray, weight: np.ndarray, terms: int) -> list[float]:
    """Coefficients as minimax() has them, but each an f32."""
    found: list[float] = []
    rest, scale = wanted, weight
    while len(found) < terms:
        found.append(float(np.float32(minimax(x, rest, scale, terms - len(found))[0])))
        rest, scale = (rest - found[-1]) / x, scale * np.abs(x)
    best = largest(x, wanted, weight, found)
    better = True
    while better:
        better = False
        for i in range(terms):
            for steps in (-2, -1, 1, 2):
                other = list(found)
                step = float(np.spacing(np.float32(abs(found[i]))))
                other[i] = float(np.float32(found[i] + steps * step))
                error = largest(x, wanted, weight, other)
                if error < best:
                    found, best, better = other, error, True
    return found


def in_source(function: str) -> list[float]:
    """The constants of a function's sum, the one of the lowest power first."""
    body = SOURCE.read_text().split(f" {function}(V ", 1)[1].split("\n}", 1)[0]
    literals = re.findall(r"V::all\((-?[\d.]+e-\d+)F\)", body)
    return [float(np.float32(text)) for text in reversed(literals)]


def main() -> int:
    r = np.linspace(-0.5, 0.5, POINTS)  # an even number: 0 is not among them
    y = np.linspace(0.0, 1.0, POINTS + 1)[1:]
    power = np.expm1(r * np.log(2.0))
    log = np.log1p(y)
    failed = False
    for function, terms, x, wanted, weight in (
        ("vector_exp2", 6, r, power / r, np.abs(r) / (1 + power)),
        ("vector_log1p", 9, y, (log - y) / y**2, y**2 / log),
    ):
        found = fit(x, wanted, weight, terms)
        source = in_source(function)
        print(f"{function}: largest relative error {largest(x, wanted, weight, found):.3g}")
        for i, c in enumerate(found):
            print(f"  x^{i}: {c:.8e}F")
        if source != found:
            shown = ", ".join(f"{c:.8e}" for c in source)
            print(f"error: the source has {shown}", file=sys.stderr)
            if len(source) == terms:
                off = largest(x, wanted, weight, source)
                print(f"error: which is off by {off:.3g}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
