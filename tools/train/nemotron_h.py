"""The training forward of a ``nemotron_h`` model without experts, in plain PyTorch.

The Mamba-2 layer is the chunked form of the recurrence (SSD), written as batched matrix products that
``torch.compile`` fuses well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layers


@dataclass(frozen=True)
class NemotronHConfig:
    """Shape of the model; the names are those of ``config.json``."""

    vocab_size: int = 2048
    hidden_size: int = 160
    hybrid_override_pattern: str = "M-M-M*M-"
    mamba_num_heads: int = 4
    mamba_head_dim: int = 64
    ssm_state_size: int = 128
    n_groups: int = 1
    conv_kernel: int = 4
    chunk_size: int = 128
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 512
    layer_norm_epsilon: float = 1e-5

    def to_json(self) -> dict[str, object]:
        """Contents of ``config.json``.

        ``time_step_min`` is far below any step the model takes: transformers (5.17) clamps dt to it
        in prefill, though not in decoding, while training here has no clamp.
        """
        return {
            "architectures": ["NemotronHForCausalLM"],
            "model_type": "nemotron_h",
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": False,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": len(self.hybrid_override_pattern),
            "hybrid_override_pattern": self.hybrid_override_pattern,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "residual_in_fp32": False,
            "mamba_num_heads": self.mamba_num_heads,
            "mamba_head_dim": self.mamba_head_dim,
            "ssm_state_size": self.ssm_state_size,
            "n_groups": self.n_groups,
            "conv_kernel": self.conv_kernel,
            "use_conv_bias": True,
            "chunk_size": self.chunk_size,
            "mamba_hidden_act": "silu",
            "mamba_proj_bias": False,
            "mamba_ssm_cache_dtype": "float32",
            "time_step_limit": [0.0, math.inf],
            "time_step_min": 1e-9,
            "time_step_max": 0.1,
            "time_step_floor": 1e-9,
            "use_bias": False,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "sliding_window": None,
            "intermediate_size": self.intermediate_size,
            "mlp_bias": False,
            "mlp_hidden_act": "relu2",
            "max_position_embeddings": 1048576,
            "initializer_range": 0.02,
            "num_logits_to_keep": 1,
            "use_cache": True,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    @classmethod
    def from_json(cls, raw: dict) -> NemotronHConfig:
        """Read back what :meth:`to_json` wrote."""
        return cls(**{k: raw[k] for k in cls.__dataclass_fields__})


class GroupNorm(layers.RMSNorm):
    """RMSNorm of x, or of x * silu(gate), over each of equal groups of the last dimension."""

    def __init__(self, size: int, eps: float, groups: int = 1) -> None:
        super().__init__(size, eps)
        self.groups = groups

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        x = x.float()
        if gate is not None:
            x = x * F.silu(gate.float())
        x = layers.unit_rms(x.unflatten(-1, (self.groups, -1)), self.eps)
        return x.flatten(-2) * self.weight


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk: int,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mamba-2's recurrence over whole sequences, chunk by chunk.

    S_t = exp(dt_t a) S_{t-1} + dt_t x_t b_t^T, y_t = S_t c_t. Source: T. Dao and A. Gu,
    "Transformers are SSMs" (2024), section 6.

    Parameters
    ----------
    x
        [batch, time, heads, head_dim]; time is a multiple of ``chunk``.
    dt
        [batch, time, heads], float32.
    a
        [heads], float32, negative.
    b, c
        [batch, time, groups, state].
    chunk
        Chunk length.
    state
        [batch, heads, head_dim, state] to start from, or None for zeros.

    Returns
    -------
    y : Tensor, [batch, time, heads, head_dim], float32
    state : Tensor, [batch, heads, head_dim, state], float32, after the last token
    """
    batch, time, heads, dim = x.shape
    groups, size = b.shape[2:]
    per, count, kind = heads // groups, time // chunk, x.dtype

    log_decay = (dt * a).view(batch, count, chunk, heads).transpose(2, 3)
    total = log_decay.cumsum(-1)  # [batch, count, heads, chunk]
    u = (
        (x.float() * dt[..., None])
        .view(batch, count, chunk, heads, dim)
        .transpose(2, 3)
    )
    b = b.view(batch, count, chunk, groups, size).transpose(2, 3)
    c = c.view(batch, count, chunk, groups, size).transpose(2, 3)

    # Inside a chunk: a masked, decayed attention.
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    decay = (
        (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -math.inf).exp()
    )
    scores = (c @ b.transpose(-1, -2)).unsqueeze(
        3
    )  # [batch, count, groups, 1, chunk, chunk]
    weights = (scores * decay.unflatten(2, (groups, per))).flatten(2, 3).to(kind)
    y = (weights @ u.to(kind)).float()

    # What each chunk leaves in the state, and the state each chunk starts from.
    last = total[..., -1:]
    left = (u * (last - total).exp()[..., None]).to(kind)
    left = left.unflatten(2, (groups, per)).transpose(-1, -2).flatten(3, 4)
    states = (left @ b).float().view(batch, count, heads * dim * size)
    ends = last[..., 0].transpose(1, 2).cumsum(-1)  # [batch, heads, count]
    before = F.pad(ends, (1, 0))[..., :-1]
    earlier = torch.ones(count, count, dtype=torch.bool, device=x.device).tril(-1)
    carry = (
        (before[..., :, None] - ends[..., None, :])
        .masked_fill(~earlier, -math.inf)
        .exp()
    )
    states = states.view(batch, count, heads, dim * size).transpose(1, 2)
    start = carry @ states  # [batch, heads, count, dim * size]
    if state is not None:
        start = start + before.exp()[..., None] * state.flatten(2)[:, :, None]
    final = (ends - before)[..., -1:].exp() * start[:, :, -1] + states[:, :, -1]
    start = start.transpose(1, 2).to(kind)
    start = start.reshape(batch, count, groups, per * dim, size)
    through = (
        c @ start.transpose(-1, -2)
    ).float()  # [batch, count, groups, chunk, per * dim]
    through = through.unflatten(-1, (per, dim)).transpose(3, 4).flatten(2, 3)
    y = y + through * total.exp()[..., None]
    y = y.transpose(2, 3).reshape(batch, time, heads, dim)
    return y, final.view(batch, heads, dim, size)


class Mamba2(nn.Module):
    """Mamba-2 mixer: [z | x | B | C | dt] projection, causal convolution, SSD, gated norm."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        self.config = config
        heads, wide = config.mamba_num_heads, config.n_groups * config.ssm_state_size
        inner = heads * config.mamba_head_dim
        self.convolved = [inner, wide, wide]  # x, B, C
        channels = sum(self.convolved)
        self.in_proj = layers.linear(config.hidden_size, inner + channels + heads)
        self.conv1d = layers.depthwise(channels, config.conv_kernel, bias=True)
        self.dt_bias = layers.initial_dt_bias(heads)
        self.A_log = layers.initial_log_rates(heads)
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GroupNorm(inner, config.layer_norm_epsilon, config.n_groups)
        self.out_proj = layers.linear(inner, config.hidden_size)

    def forward(self, hidden: Tensor, cache: layers.Cache | None = None) -> Tensor:
        cfg, inner = self.config, self.convolved[0]
        gate, xbc, dt = self.in_proj(hidden).split(
            [inner, sum(self.convolved), cfg.mamba_num_heads], dim=-1
        )
        xbc = layers.causal_conv(xbc, self.conv1d.weight, self.conv1d.bias, cache)
        x, b, c = xbc.split(self.convolved, dim=-1)
        x = x.unflatten(-1, (cfg.mamba_num_heads, cfg.mamba_head_dim))
        b, c = (p.unflatten(-1, (cfg.n_groups, cfg.ssm_state_size)) for p in (b, c))
        dt = F.softplus(dt.float() + self.dt_bias)
        a = -torch.exp(self.A_log.float())
        y = layers.recur(ssd, (x, dt, a, b, c), cfg.chunk_size, cache)
        y = y + self.D[:, None] * x.float()
        return self.out_proj(self.norm(y.flatten(-2), gate))


class Attention(layers.GroupedQueryAttention):
    """Causal grouped-query attention without positional encoding."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__(config, config.head_dim)

    def forward(self, hidden: Tensor, cache: layers.Cache | None = None) -> Tensor:
        y = layers.attend(*self.projected(hidden), cache)
        return self.o_proj(y.flatten(-2))


class Mlp(nn.Module):
    """W_down relu(W_up x)^2."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        self.up_proj = layers.linear(config.hidden_size, config.intermediate_size)
        self.down_proj = layers.linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor, cache: layers.Cache | None = None) -> Tensor:
        del cache  # it has no state
        return self.down_proj(F.relu(self.up_proj(hidden)).square())


class Block(nn.Module):
    """h + mixer(norm(h)): one sublayer, as everywhere in this family."""

    def __init__(self, config: NemotronHConfig, kind: str) -> None:
        super().__init__()
        self.norm = GroupNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = {"M": Mamba2, "*": Attention, "-": Mlp}[kind](config)

    def forward(
        self,
        hidden: Tensor,
        dropout: Tensor | None = None,
        cache: layers.Cache | None = None,
    ) -> Tensor:
        return layers.added(hidden, self.mixer(self.norm(hidden), cache), dropout)


class NemotronH(layers.LanguageModel):
    """A model of the family; its layers are sublayers."""

    names = ("backbone", "embeddings", "norm_f")

    def __init__(self, config: NemotronHConfig) -> None:
        norm = GroupNorm(config.hidden_size, config.layer_norm_epsilon)
        super().__init__(config, Block, config.hybrid_override_pattern, norm)
