"""Loss of the held-out tokens under any function from ids to logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import heldout


@torch.no_grad()
def nats(
    logits_of: Callable[[Tensor], Tensor],
    documents: list[heldout.EncodedDocument],
    bos: int,
    device: str,
    length: int,
    rows: int,
    share: int = 1,
) -> tuple[dict[str, float], dict[str, int]]:
    """Sum -ln p of the held-out tokens, per corpus, and count them.

    Parameters
    ----------
    logits_of
        From ids [rows, length] to logits [rows, length, vocab].
    documents
        All of them; the held-out ones are scored.
    bos
        Id of the token before each document.
    device
        Of the ids.
    length
        Of a window, see :func:`heldout.windows`.
    rows
        Windows at once.
    share
        Score every so-many-th window only.
    """
    total, count = {}, {}
    for name in ("austen", "python"):
        parts = [
            heldout.windows(d.ids, length, bos)
            for d in documents
            if d.held_out and d.corpus == name
        ]
        x, y, scored = (
            torch.from_numpy(np.concatenate(p)[::share]).to(device)
            for p in zip(*parts, strict=True)
        )
        total[name], count[name] = 0.0, int(scored.sum())
        for at in range(0, len(x), rows):
            cut = slice(at, at + rows)
            logits = logits_of(x[cut]).float().flatten(0, 1)
            loss = F.cross_entropy(logits, y[cut].flatten(), reduction="none")
            total[name] += float(loss[scored[cut].flatten()].double().sum())
    return total, count
