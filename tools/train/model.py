"""The training forward of a ``nemotron_h`` model without experts, in plain PyTorch.

Parameters carry the names of released checkpoints (``backbone.layers.N.mixer.in_proj.weight``, ...),
so that a state dict is a checkpoint. The Mamba-2 layer is the chunked form of the recurrence (SSD),
written as batched matrix products that ``torch.compile`` fuses well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
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
    def from_json(cls, raw: dict) -> ModelConfig:
        """Read back what :meth:`to_json` wrote."""
        return cls(**{k: raw[k] for k in cls.__dataclass_fields__})


class RMSNorm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension, or over each of its groups."""

    def __init__(self, size: int, eps: float, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.groups = eps, groups

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        x = x.float()
        if gate is not None:
            x = x * F.silu(gate.float())
        parts = x.unflatten(-1, (self.groups, -1))
        parts = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.eps)
        return parts.flatten(-2) * self.weight


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

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.mamba_num_heads
        self.inner = heads * config.mamba_head_dim
        self.conv_dim = self.inner + 2 * config.n_groups * config.ssm_state_size
        self.in_proj = nn.Linear(
            config.hidden_size, self.inner + self.conv_dim + heads, bias=False
        )
        self.conv1d = nn.Conv1d(
            self.conv_dim, self.conv_dim, config.conv_kernel, groups=self.conv_dim
        )
        # Initial step sizes log-uniform in [0.001, 0.1], stored as the inverse of softplus.
        dt = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.empty(heads).uniform_(1.0, 16.0)))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(self.inner, config.layer_norm_epsilon, config.n_groups)
        self.out_proj = nn.Linear(self.inner, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        """``cache`` carries the convolution's last inputs and the recurrent state between calls."""
        cfg = self.config
        time = hidden.shape[1]
        gate, xbc, dt = self.in_proj(hidden).split(
            [self.inner, self.conv_dim, cfg.mamba_num_heads], dim=-1
        )
        # The convolution as a sum of shifted products fuses with its neighbours.
        if cache is not None and "conv" in cache:
            padded = torch.cat([cache["conv"], xbc], 1)
        else:
            padded = F.pad(xbc, (0, 0, cfg.conv_kernel - 1, 0))
        taps = self.conv1d.weight[:, 0]
        mixed = self.conv1d.bias + sum(
            padded[:, j : j + time] * taps[:, j] for j in range(cfg.conv_kernel)
        )
        xbc = F.silu(mixed).to(xbc.dtype)
        wide = cfg.n_groups * cfg.ssm_state_size
        x, b, c = xbc.split([self.inner, wide, wide], dim=-1)
        x = x.unflatten(-1, (cfg.mamba_num_heads, cfg.mamba_head_dim))
        b = b.unflatten(-1, (cfg.n_groups, cfg.ssm_state_size))
        c = c.unflatten(-1, (cfg.n_groups, cfg.ssm_state_size))
        dt = F.softplus(dt.float() + self.dt_bias)
        state = None if cache is None else cache.get("state")
        chunk = time if time % cfg.chunk_size else cfg.chunk_size
        with torch.autocast(hidden.device.type, enabled=False):
            a = -torch.exp(self.A_log.float())
            y, state = ssd(x, dt, a, b, c, chunk, state)
            y = y + self.D[:, None] * x.float()
        if cache is not None:
            cache["conv"], cache["state"] = padded[:, time:], state
        return self.out_proj(self.norm(y.flatten(-2), gate))


class Attention(nn.Module):
    """Causal grouped-query attention without positional encoding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        query = config.num_attention_heads * config.head_dim
        key = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cache: dict | None = None) -> Tensor:
        if cache is not None:
            raise NotImplementedError("attention here has no cache")
        q, k, v = (
            p(hidden).unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        share = self.config.num_attention_heads // self.config.num_key_value_heads
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    """W_down relu(W_up x)^2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(
            config.hidden_size, config.intermediate_size, bias=False
        )
        self.down_proj = nn.Linear(
            config.intermediate_size, config.hidden_size, bias=False
        )

    def forward(self, hidden: Tensor, cache: dict | None = None) -> Tensor:
        return self.down_proj(F.relu(self.up_proj(hidden)).square())


class Block(nn.Module):
    """h + mixer(norm(h)): one sublayer, as everywhere in this family."""

    def __init__(self, config: ModelConfig, kind: str) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = {"M": Mamba2, "*": Attention, "-": Mlp}[kind](config)

    def forward(
        self,
        hidden: Tensor,
        dropout: Tensor | None = None,
        cache: dict[str, Tensor] | None = None,
    ) -> Tensor:
        out = self.mixer(self.norm(hidden), cache).float()
        if dropout is not None:
            out = torch.where(torch.rand_like(out) < dropout, 0.0, out) / (
                1.0 - dropout
            )
        return hidden + out


class NemotronH(nn.Module):
    """The whole model: token ids [batch, time] to the hidden states before ``lm_head``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = nn.Module()
        self.backbone.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.backbone.layers = nn.ModuleList(
            Block(config, kind) for kind in config.hybrid_override_pattern
        )
        self.backbone.norm_f = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        for name, p in self.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                p.normal_(
                    std=1.0 / math.sqrt(2 * p.shape[1] * len(self.backbone.layers))
                )
            elif name.endswith("_proj.weight"):
                p.normal_(std=1.0 / math.sqrt(p.shape[1]))
            elif name.endswith("conv1d.weight"):
                p.uniform_(-0.5, 0.5)
            elif name.endswith("conv1d.bias"):
                p.zero_()
            elif name in ("backbone.embeddings.weight", "lm_head.weight"):
                p.normal_(std=0.1 if "embeddings" in name else 0.02)

    @property
    def layers(self) -> nn.ModuleList:
        """The sublayers."""
        return self.backbone.layers

    def forward(
        self,
        ids: Tensor,
        dropout: Tensor | None = None,
        caches: list[dict[str, Tensor]] | None = None,
    ) -> Tensor:
        """Hidden states.

        ``dropout`` [batch, 1, 1] is the share of each row's sublayer outputs to drop; ``caches``, one
        dict a sublayer, carry the recurrent states between calls.
        """
        hidden = self.backbone.embeddings(ids)
        for i, layer in enumerate(self.backbone.layers):
            hidden = layer(hidden, dropout, None if caches is None else caches[i])
        return self.backbone.norm_f(hidden)

    def logits(self, ids: Tensor) -> Tensor:
        """Logits [batch, time, vocab], float32; any length (padded to whole chunks inside)."""
        time = ids.shape[1]
        pad = -time % self.config.chunk_size
        return self.lm_head(self(F.pad(ids, (0, pad)))[:, :time]).float()
