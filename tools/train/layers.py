"""What the families share: norms, convolution, attention, the decoder layer, and the model around the layers.

Parameters carry the names of released checkpoints, so that a state dict is a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# What a layer carries between calls: "conv", the convolution's last inputs, and "state", the
# recurrence's.
Cache = dict[str, Tensor]


class ModelShape(Protocol):
    """What the model around the layers reads of a family's configuration."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...


class AttentionShape(Protocol):
    """What grouped-query attention reads of it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class DecoderShape(Protocol):
    """What a decoder layer reads of it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) over the last dimension, float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """The last dimension brought to a root mean square of 1, times a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return unit_rms(x, self.eps) * self.weight


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A matrix without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def depthwise(channels: int, width: int, *, bias: bool = False) -> nn.Conv1d:
    """Hold the weights of :func:`causal_conv` under a convolution's names."""
    return nn.Conv1d(channels, channels, width, groups=channels, bias=bias)


def causal_conv(
    x: Tensor, taps: Tensor, bias: Tensor | None = None, cache: Cache | None = None
) -> Tensor:
    """Depthwise causal convolution and SiLU.

    As a sum of shifted products it fuses with its neighbours.

    Parameters
    ----------
    x
        [batch, time, channels].
    taps
        [channels, 1, width]; the last one multiplies the current token.
    bias
        [channels].
    cache
        If given, ``cache["conv"]`` [batch, width - 1, channels] holds the inputs before ``x`` (absent:
        zeros) and is replaced by those before what follows.
    """
    taps, width, time = taps[:, 0], taps.shape[-1], x.shape[1]
    if cache is not None and "conv" in cache:
        padded = torch.cat([cache["conv"], x], 1)
    else:
        padded = F.pad(x, (0, 0, width - 1, 0))
    if cache is not None:
        cache["conv"] = padded[:, time:]
    mixed = sum(padded[:, j : j + time].float() * taps[:, j] for j in range(width))
    return F.silu(mixed if bias is None else bias + mixed).to(x.dtype)


def initial_dt_bias(size: int) -> nn.Parameter:
    """[size]: step sizes log-uniform in [0.001, 0.1], as the inverse of softplus."""
    dt = torch.exp(torch.empty(size).uniform_(math.log(1e-3), math.log(1e-1)))
    return nn.Parameter(dt + torch.log(-torch.expm1(-dt)))


def initial_log_rates(*shape: int) -> nn.Parameter:
    """``A_log``: the logarithms of decay rates uniform in [1, 16]."""
    return nn.Parameter(torch.log(torch.empty(shape).uniform_(1.0, 16.0)))


def recur(
    rule: Callable[..., tuple[Tensor, Tensor]],
    inputs: tuple[Tensor, ...],
    chunk: int,
    cache: Cache | None,
    **options: bool,
) -> Tensor:
    """Apply a recurrence in float32, from and to the state in ``cache``.

    Parameters
    ----------
    rule
        Takes ``inputs``, a chunk length and a state or None; returns outputs and the new state.
    inputs
        The first is [batch, time, ...].
    chunk
        Chunk length, where it divides the time; other lengths are one chunk.
    cache
        If given, ``cache["state"]`` (absent: zeros) is read and replaced.
    options
        For ``rule``.
    """
    time = inputs[0].shape[1]
    state = None if cache is None else cache.get("state")
    with torch.autocast(inputs[0].device.type, enabled=False):
        out, state = rule(*inputs, time if time % chunk else chunk, state, **options)
    if cache is not None:
        cache["state"] = state
    return out


def attend(q: Tensor, k: Tensor, v: Tensor, cache: Cache | None) -> Tensor:
    """Causal softmax attention.

    Parameters
    ----------
    q
        [batch, time, heads, size].
    k
        [batch, time, kv heads, size]; kv head i serves neighbouring heads.
    v
        [batch, time, kv heads, value size].
    cache
        None: attention here has no cache.

    Returns
    -------
    Tensor
        [batch, time, heads, value size].
    """
    if cache is not None:
        raise NotImplementedError("attention here has no cache")
    share = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if share > 1:
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class GroupedQueryAttention(nn.Module):
    """The projections of grouped-query attention, with ``query_size`` numbers a query head."""

    def __init__(self, config: AttentionShape, query_size: int) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.num_attention_heads
        key = config.num_key_value_heads * config.head_dim
        self.q_proj = linear(hidden, heads * query_size)
        self.k_proj = linear(hidden, key)
        self.v_proj = linear(hidden, key)
        self.o_proj = linear(heads * config.head_dim, hidden)

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, time, heads, query size]; keys and values [batch, time, kv heads, head_dim]."""
        q = self.q_proj(hidden).unflatten(-1, (self.config.num_attention_heads, -1))
        k, v = (
            p(hidden).unflatten(-1, (-1, self.config.head_dim))
            for p in (self.k_proj, self.v_proj)
        )
        return q, k, v


class SwiGlu(nn.Module):
    """W_down (silu(W_gate x) * W_up x)."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, width)
        self.up_proj = linear(hidden, width)
        self.down_proj = linear(width, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


def added(hidden: Tensor, out: Tensor, dropout: Tensor | None) -> Tensor:
    """Add a sublayer's output to the residual [batch, time, hidden].

    ``dropout`` [batch, 1, 1] is the share of each row's entries of ``out`` to drop.
    """
    out = out.float()
    if dropout is not None:
        out = torch.where(torch.rand_like(out) < dropout, 0.0, out) / (1.0 - dropout)
    return hidden + out


class DecoderLayer(nn.Module):
    """Mixer and feed-forward network, each after a norm and added to the residual.

    Parameters
    ----------
    config
        The family's.
    name
        Of the mixer in a checkpoint.
    mixer
        The recurrence or attention.
    norm
        Class of the norms.
    """

    def __init__(
        self,
        config: DecoderShape,
        name: str,
        mixer: nn.Module,
        norm: type[RMSNorm],
    ) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = norm(hidden, eps)
        self._mixer_name = name
        setattr(self, name, mixer)
        self.post_attention_layernorm = norm(hidden, eps)
        self.mlp = SwiGlu(hidden, config.intermediate_size)

    @property
    def mixer(self) -> nn.Module:
        """The attention of this layer, of whichever kind."""
        return getattr(self, self._mixer_name)

    def forward(
        self, hidden: Tensor, dropout: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        out = self.mixer(self.input_layernorm(hidden), cache)
        hidden = added(hidden, out, dropout)
        out = self.mlp(self.post_attention_layernorm(hidden))
        return added(hidden, out, dropout)


class LanguageModel(nn.Module):
    """The whole model: token ids [batch, time] to the hidden states before ``lm_head``.

    Parameters
    ----------
    config
        The family's.
    layer
        Makes the layer of a kind.
    kinds
        Of the layers, in order.
    norm
        Behind the last layer.
    """

    # Names of the trunk, its embeddings and its last norm in a checkpoint.
    names = ("model", "embed_tokens", "norm")

    def __init__(
        self,
        config: ModelShape,
        layer: Callable[[ModelShape, str], nn.Module],
        kinds: Iterable[str],
        norm: RMSNorm,
    ) -> None:
        super().__init__()
        self.config = config
        trunk, embeddings, last = nn.Module(), *self.names[1:]
        # The order fixes which initial values a seed gives.
        setattr(trunk, embeddings, nn.Embedding(config.vocab_size, config.hidden_size))
        trunk.layers = nn.ModuleList(layer(config, kind) for kind in kinds)
        setattr(trunk, last, norm)
        setattr(self, self.names[0], trunk)
        self.lm_head = linear(config.hidden_size, config.vocab_size)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Fan-in scaled matrices; a sublayer's output becomes smaller with the depth."""
        depth = 2 * len(self.layers)
        for name, p in self.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                p.normal_(std=1.0 / math.sqrt(depth * p.shape[1]))
            elif "embed" in name or "lm_head" in name:
                p.normal_(std=0.1 if "embed" in name else 0.02)
            elif name.endswith("conv1d.bias"):
                p.zero_()
            elif "conv1d" in name:
                p.uniform_(-0.5, 0.5)
            elif p.ndim == 2:
                p.normal_(std=1.0 / math.sqrt(p.shape[1]))

    @property
    def embeddings(self) -> nn.Embedding:
        """The embeddings, [vocab, hidden]."""
        return getattr(getattr(self, self.names[0]), self.names[1])

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, each with a ``mixer``."""
        return getattr(self, self.names[0]).layers

    @property
    def last_norm(self) -> RMSNorm:
        """The norm before ``lm_head``."""
        return getattr(getattr(self, self.names[0]), self.names[2])

    def forward(
        self,
        ids: Tensor,
        dropout: Tensor | None = None,
        caches: list[Cache] | None = None,
    ) -> Tensor:
        """Hidden states [batch, time, hidden].

        ``dropout`` [batch, 1, 1] is the share of each row's sublayer outputs to drop; ``caches``, one
        dict a layer, carry the recurrent states between calls.
        """
        hidden = self.embeddings(ids)
        for i, layer in enumerate(self.layers):
            hidden = layer(hidden, dropout, None if caches is None else caches[i])
        return self.last_norm(hidden)

    def logits(self, ids: Tensor) -> Tensor:
        """Logits [batch, time, vocab], float32; any length (padded to whole chunks inside)."""
        time = ids.shape[1]
        pad = -time % self.config.chunk_size
        return self.lm_head(self(F.pad(ids, (0, pad)))[:, :time]).float()
