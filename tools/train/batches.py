"""Training rows of ``train.py``: random windows of the two corpora."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

import heldout
import vocabulary


class Batches:
    """Random windows of the two training streams; both streams live on the device."""

    def __init__(
        self,
        documents: list[heldout.EncodedDocument],
        words: vocabulary.Vocabulary,
        args: argparse.Namespace,
    ) -> None:
        self.words, self.device, self.share = words, args.device, args.austen_share
        self.tokens = args.rows * args.lengths[0]
        self.streams = {}
        for name in ("austen", "python"):
            parts = [
                np.concatenate([[words.bos], d.ids, [words.eos]])
                for d in documents
                if d.corpus == name and not d.held_out
            ]
            self.streams[name] = torch.from_numpy(np.concatenate(parts)).to(args.device)
        self.generator = torch.Generator(args.device).manual_seed(args.seed)

    def rows(self, length: int) -> dict[str, int]:
        """Rows of each corpus in a step of this length."""
        rows = self.tokens // length
        austen = round(rows * self.share)
        return {"austen": austen, "python": rows - austen}

    def next(self, length: int) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, each [rows, length].

        In every second row (by chance) the first input is bos, so that text which begins anywhere
        after a bos, as prompts do, is nothing new to the model.
        """
        parts = []
        span = torch.arange(length + 1, device=self.device)
        for name, count in self.rows(length).items():
            stream = self.streams[name]
            start = torch.randint(
                len(stream) - length,
                (count, 1),
                generator=self.generator,
                device=self.device,
            )
            parts.append(stream[start + span])
        block = torch.cat(parts)
        inputs = block[:, :-1].contiguous()
        coin = torch.rand(len(inputs), generator=self.generator, device=self.device)
        inputs[:, 0] = torch.where(coin < 0.5, self.words.bos, inputs[:, 0])
        return inputs, block[:, 1:].contiguous()
