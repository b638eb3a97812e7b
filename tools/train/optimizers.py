"""The optimizers of ``train.py`` and their learning rate."""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn


def make_optimizers(
    model: nn.Module, args: argparse.Namespace
) -> list[torch.optim.Optimizer]:
    """AdamW with weight decay on matrices only, or Muon for the matrices and AdamW for the rest.

    Muon's update is scaled to the size of AdamW's, so that both take the same rate.
    """
    inner, outer, keep = [], [], []
    for name, p in model.named_parameters():
        if "embed" in name or p.ndim != 2:
            keep.append(p)
        else:
            (outer if name == "lm_head.weight" else inner).append(p)
    groups = [
        {"params": outer, "weight_decay": args.weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]
    if args.optimizer == "adamw":
        groups[0]["params"] = inner + outer
    result: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    ]
    if args.optimizer == "muon":
        result.append(
            torch.optim.Muon(
                inner,
                lr=args.lr,
                weight_decay=args.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return result


def rate(step: int, args: argparse.Namespace) -> float:
    """Learning rate: linear warm-up, then as ``--schedule`` says."""
    warm = min(args.warmup, args.steps // 4 + 1)
    if step < warm:
        return args.lr * (step + 1) / warm
    if args.schedule == "hold":
        return args.lr * min(1.0, (args.steps - step) / (0.4 * args.steps))
    done = (step - warm) / max(1, args.steps - warm)
    return args.lr * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done)))
