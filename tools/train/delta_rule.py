"""The gated delta rule over whole sequences, chunk by chunk, and the norm behind it.

Both rules keep one matrix S [K, V] per head and apply, token by token,

    S <- diag(e^g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q.

In GDN the log decay g is one number per head and token, in KDA one per key channel. Sources: S. Yang,
J. Kautz, A. Hatamizadeh, "Gated Delta Networks" (2024), section 3.3; Kimi Team, "Kimi Linear" (2025),
section 3. Inside a chunk the corrections u solve a unit triangular system; between chunks only S goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from layers import RMSNorm

# Inside a block of this many tokens, KDA's pairwise decays are a product of two factors.
_BLOCK = 16
# Largest log decay of one token in such a block while training: half a block of it stays far below
# the float32 overflow at 88. e^-9 is nothing for a state, and evaluation uses no bound.
_MOST_DECAY = 9.0


def l2_normalised(x: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-6) over the last dimension, float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[batch, time, heads, ...] to [batch, heads, chunks, chunk, ...]."""
    return x.unflatten(1, (-1, chunk)).movedim(3, 1)


def _scan(
    inside: Tensor,
    system: Tensor,
    rhs: Tensor,
    q_in: Tensor,
    k_out: Tensor,
    total: Tensor,
    state: Tensor | None,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Solve each chunk's system, then pass the state from chunk to chunk.

    Parameters
    ----------
    inside
        [batch, heads, chunks, C, C], decayed q k^T, lower triangle with diagonal.
    system
        [batch, heads, chunks, C, C], decayed beta k k^T, strictly lower triangle.
    rhs
        [batch, heads, chunks, C, V + K]: beta v and beta k decayed from the chunk's start.
    q_in, k_out
        [batch, heads, chunks, C, K]: q decayed from the chunk's start, k decayed to its end.
    total
        [batch, heads, chunks, 1 or K, 1]: decay over the whole chunk.
    state
        [batch, heads, K, V] before the first chunk, or None for zeros.
    kind
        Type of the operands of the matrix products.

    Returns
    -------
    o : Tensor, [batch, time, heads, V], float32
    state : Tensor, [batch, heads, K, V], float32, after the last chunk
    """
    key, size = q_in.shape[-1], q_in.shape[-2]
    # The diagonal is not read.
    solved = torch.linalg.solve_triangular(system, rhs, upper=False, unitriangular=True)
    own, read = solved.split([rhs.shape[-1] - key, key], dim=-1)
    reads = torch.cat([read, q_in], -2).to(kind)
    inside, k_out = inside.to(kind), k_out.to(kind).transpose(-1, -2)
    if state is None:
        state = own.new_zeros(*own.shape[:2], key, own.shape[-1])
    outputs = []
    for i in range(own.shape[2]):
        found = (reads[:, :, i] @ state.to(kind)).float()
        fresh = (own[:, :, i] - found[..., :size, :]).to(kind)
        outputs.append(found[..., size:, :] + (inside[:, :, i] @ fresh).float())
        state = total[:, :, i] * state + (k_out[:, :, i] @ fresh).float()
    return torch.stack(outputs, 2).movedim(1, 3).flatten(1, 2), state


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk: int,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GDN: one decay per head.

    Parameters
    ----------
    q, k
        [batch, time, key heads, K], normalised, q also scaled; time is a multiple of ``chunk``.
    v
        [batch, time, heads, V]; value head h reads key head h // (heads / key heads).
    g, beta
        [batch, time, heads], float32; g is not positive.
    chunk
        Chunk length.
    state
        [batch, heads, K, V] to start from, or None for zeros.

    Returns
    -------
    o : Tensor, [batch, time, heads, V], float32
    state : Tensor, [batch, heads, K, V], float32, after the last token
    """
    kind, share = v.dtype, v.shape[2] // k.shape[2]
    q, k = (_chunks(x, chunk) for x in (q, k))
    v, g, beta = (_chunks(x, chunk) for x in (v, g, beta))
    kt = k.to(kind).transpose(-1, -2)
    qk = (q.to(kind) @ kt).float().repeat_interleave(share, 1)
    kk = (k.to(kind) @ kt).float().repeat_interleave(share, 1)
    q, k = q.float().repeat_interleave(share, 1), k.float().repeat_interleave(share, 1)
    sums = g.cumsum(-1)  # [batch, heads, chunks, chunk]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).triu(1)
    decay = (
        (sums[..., :, None] - sums[..., None, :])
        .masked_fill(later, float("-inf"))
        .exp()
    )
    grown = sums.exp()[..., None]
    system = kk * decay * beta[..., None]
    rhs = torch.cat([v.float(), k * grown], -1) * beta[..., None]
    k_out = k * (sums[..., -1:] - sums).exp()[..., None]
    total = sums[..., -1:, None].exp()
    return _scan(qk * decay, system, rhs, q * grown, k_out, total, state, kind)


def _channel_scores(rows: Tensor, k: Tensor, sums: Tensor, kind: torch.dtype) -> Tensor:
    """sum_c rows[i, c] k[j, c] e^(sums[i, c] - sums[j, c]) for j <= i; what stands above is not valid.

    Below the diagonal blocks both factors decay towards the row block's first token, so neither can
    overflow; inside a diagonal block they meet in its middle.

    Parameters
    ----------
    rows
        [..., n, C, K]: n sets of rows.
    k, sums
        [..., C, K].
    """
    count = k.shape[-2] // _BLOCK
    lines = []
    for b in range(count):
        here = slice(b * _BLOCK, (b + 1) * _BLOCK)
        middle = sums[..., b * _BLOCK + _BLOCK // 2, :].unsqueeze(-2)
        left = rows[..., here, :] * (sums[..., here, :] - middle).exp().unsqueeze(-3)
        right = k[..., here, :] * (middle - sums[..., here, :]).exp()
        parts = [left.to(kind).flatten(-3, -2) @ right.to(kind).transpose(-1, -2)]
        if b:
            before = slice(0, b * _BLOCK)
            first = sums[..., b * _BLOCK, :].unsqueeze(-2)
            left = rows[..., here, :] * (sums[..., here, :] - first).exp().unsqueeze(-3)
            right = k[..., before, :] * (first - sums[..., before, :]).exp()
            parts.insert(
                0, left.to(kind).flatten(-3, -2) @ right.to(kind).transpose(-1, -2)
            )
        line = torch.cat(parts, -1).float().unflatten(-2, (-1, _BLOCK))
        lines.append(F.pad(line, (0, k.shape[-2] - line.shape[-1])))
    return torch.cat(lines, -2)


def _exact_channel_scores(rows: Tensor, k: Tensor, sums: Tensor) -> Tensor:
    """The same for any decay, through all pairwise differences."""
    later = torch.ones(k.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    difference = sums[..., :, None, :] - sums[..., None, :, :]
    weight = difference.masked_fill(
        later.to(k.device)[..., None], float("-inf")
    ).exp() * k.unsqueeze(-3)
    return torch.einsum("...nic,...ijc->...nij", rows, weight)


def kimi_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk: int,
    state: Tensor | None = None,
    exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """KDA: one decay per head and key channel.

    As :func:`gated_delta_rule`, but for:

    Parameters
    ----------
    q, k, g
        [batch, time, heads, K]; g float32, not positive. Unless ``exact``, g is bounded below by -9.
    chunk
        Chunk length, unless ``exact`` a multiple of 16.
    exact
        Take the pairwise decays one by one, without a bound: slower, for evaluation.
    """
    kind = v.dtype
    q, k, v, g, beta = (_chunks(x, chunk) for x in (q, k, v, g, beta))
    q, k = q.float(), k.float()
    if not exact:
        g = g.clamp(min=-_MOST_DECAY)
    sums = g.cumsum(-2)  # [batch, heads, chunks, chunk, K]
    rows = torch.stack([q, k * beta[..., None]], 3)
    scores = (
        _exact_channel_scores(rows, k, sums)
        if exact
        else _channel_scores(rows, k, sums, kind)
    )
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    inside, system = scores.masked_fill(~lower, 0.0).unbind(3)
    grown = sums.exp()
    rhs = torch.cat([v.float(), k * grown], -1) * beta[..., None]
    last = sums[..., -1:, :]
    k_out = k * (last - sums).exp()
    total = last.exp().transpose(-1, -2)
    return _scan(inside, system, rhs, q * grown, k_out, total, state, kind)


class HeadNorm(RMSNorm):
    """RMSNorm over each head's values, then a gate: SiLU (GDN) or sigmoid (KDA)."""

    def __init__(
        self, size: int, eps: float, activation: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(size, eps)
        self.activation = activation

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return super().forward(x) * self.activation(gate.float())
