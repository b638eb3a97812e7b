"""The training forward of a dense, text-only ``qwen3_5`` model, in plain PyTorch.

Parameters carry the names of text-only checkpoints (``model.layers.N.linear_attn.in_proj_qkv.weight``,
...), so that a state dict is a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from delta_rule import (
    HeadNorm,
    SwiGlu,
    causal_conv,
    dropped,
    gated_delta_rule,
    initialise,
    l2_normalised,
)


@dataclass(frozen=True)
class Qwen35Config:
    """Shape of the model; the names are those of ``config.json``."""

    vocab_size: int = 2048
    hidden_size: int = 160
    intermediate_size: int = 320
    layer_types: tuple[str, ...] = ("linear_attention",) * 3 + ("full_attention",)
    linear_num_key_heads: int = 1
    linear_num_value_heads: int = 2
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    chunk: int = 32
    bos_token_id: int = 1
    eos_token_id: int = 2
    pad_token_id: int = 0

    def to_json(self) -> dict[str, object]:
        """Contents of ``config.json``."""
        pairs = int(self.head_dim * self.partial_rotary_factor) // 2
        third = (pairs + 2) // 3
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": False,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": len(self.layer_types),
            "full_attention_interval": 4,
            "layer_types": list(self.layer_types),
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "linear_conv_kernel_dim": self.linear_conv_kernel_dim,
            "linear_key_head_dim": self.linear_key_head_dim,
            "linear_num_key_heads": self.linear_num_key_heads,
            "linear_num_value_heads": self.linear_num_value_heads,
            "linear_value_head_dim": self.linear_value_head_dim,
            "mamba_ssm_dtype": "float32",
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "partial_rotary_factor": self.partial_rotary_factor,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.partial_rotary_factor,
                "mrope_interleaved": True,
                "mrope_section": [third, third, pairs - 2 * third],
            },
            "mtp_num_hidden_layers": 0,
            "max_position_embeddings": 1048576,
            "initializer_range": 0.02,
            "use_cache": True,
            "pad_token_id": self.pad_token_id,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
        }

    @classmethod
    def from_json(cls, raw: dict) -> Qwen35Config:
        """Read back what :meth:`to_json` wrote."""
        fields = {k: raw[k] for k in cls.__dataclass_fields__ if k in raw}
        fields["layer_types"] = tuple(raw["layer_types"])
        fields["rope_theta"] = raw["rope_parameters"]["rope_theta"]
        return cls(**fields)


class ZeroCentredNorm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * (1 + weight) over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * (1.0 + self.weight)


class GatedDeltaNet(nn.Module):
    """Projections, convolution over [q | k | v], gated delta rule, gated norm."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        self.key = config.linear_num_key_heads * config.linear_key_head_dim
        self.value = config.linear_num_value_heads * config.linear_value_head_dim
        heads, hidden = config.linear_num_value_heads, config.hidden_size
        channels = 2 * self.key + self.value
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, self.value, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)
        self.conv1d = nn.Conv1d(
            channels,
            channels,
            config.linear_conv_kernel_dim,
            groups=channels,
            bias=False,
        )
        dt = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.empty(heads).uniform_(1.0, 16.0)))
        self.norm = HeadNorm(config.linear_value_head_dim, config.rms_norm_eps, "silu")
        self.out_proj = nn.Linear(self.value, hidden, bias=False)

    def gates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay and write strength, each [batch, time, heads], float32."""
        g = -torch.exp(self.A_log.float()) * F.softplus(
            self.in_proj_a(hidden).float() + self.dt_bias
        )
        return g, torch.sigmoid(self.in_proj_b(hidden).float())

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        cfg = self.config
        mixed = causal_conv(self.in_proj_qkv(hidden), self.conv1d.weight[:, 0], cache)
        q, k, v = mixed.split([self.key, self.key, self.value], dim=-1)
        q, k = (
            l2_normalised(x.unflatten(-1, (-1, cfg.linear_key_head_dim)))
            for x in (q, k)
        )
        v = v.unflatten(-1, (-1, cfg.linear_value_head_dim))
        z = self.in_proj_z(hidden).unflatten(-1, (-1, cfg.linear_value_head_dim))
        g, beta = self.gates(hidden)
        state = None if cache is None else cache.get("state")
        chunk = hidden.shape[1] if hidden.shape[1] % cfg.chunk else cfg.chunk
        with torch.autocast(hidden.device.type, enabled=False):
            o, state = gated_delta_rule(
                q * cfg.linear_key_head_dim**-0.5, k, v, g, beta, chunk, state
            )
        if cache is not None:
            cache["state"] = state
        return self.out_proj(self.norm(o, z).flatten(-2))


class GatedAttention(nn.Module):
    """Causal attention with normalised q and k, rotation of the first dimensions, and an output gate."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        query = config.num_attention_heads * config.head_dim
        key = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, 2 * query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.q_norm = ZeroCentredNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = ZeroCentredNorm(config.head_dim, config.rms_norm_eps)

    def _rotated(self, x: Tensor) -> Tensor:
        """Rotate the first dimensions of [batch, time, heads, head_dim] in halves."""
        size = int(self.config.head_dim * self.config.partial_rotary_factor)
        turns = torch.arange(0, size, 2, device=x.device).float() / size
        angle = torch.outer(
            torch.arange(x.shape[1], device=x.device).float(),
            self.config.rope_theta**-turns,
        )[:, None, :]
        a, b, rest = x.split([size // 2, size // 2, x.shape[-1] - size], dim=-1)
        c, s = angle.cos(), angle.sin()
        return torch.cat([a * c - b * s, b * c + a * s, rest], -1)

    def forward(self, hidden: Tensor, cache: dict | None = None) -> Tensor:
        if cache is not None:
            raise NotImplementedError("attention here has no cache")
        cfg = self.config
        q, gate = self.q_proj(hidden).unflatten(-1, (-1, 2 * cfg.head_dim)).chunk(2, -1)
        k = self.k_proj(hidden).unflatten(-1, (-1, cfg.head_dim))
        v = self.v_proj(hidden).unflatten(-1, (-1, cfg.head_dim))
        q, k = self._rotated(self.q_norm(q)), self._rotated(self.k_norm(k))
        share = cfg.num_attention_heads // cfg.num_key_value_heads
        q, k, v = (x.to(v.dtype).transpose(1, 2) for x in (q, k, v))
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o_proj((y * torch.sigmoid(gate)).flatten(-2))


class Layer(nn.Module):
    """Mixer and feed-forward network, each after a norm and added to the residual."""

    def __init__(self, config: Qwen35Config, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.input_layernorm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        if kind == "linear_attention":
            self.linear_attn = GatedDeltaNet(config)
        else:
            self.self_attn = GatedAttention(config)
        self.post_attention_layernorm = ZeroCentredNorm(
            config.hidden_size, config.rms_norm_eps
        )
        self.mlp = SwiGlu(config.hidden_size, config.intermediate_size)

    @property
    def mixer(self) -> nn.Module:
        """The attention of this layer, of whichever kind."""
        return self.linear_attn if self.kind == "linear_attention" else self.self_attn

    def forward(
        self,
        hidden: Tensor,
        dropout: Tensor | None = None,
        cache: dict[str, Tensor] | None = None,
    ) -> Tensor:
        out = self.mixer(self.input_layernorm(hidden), cache).float()
        hidden = hidden + dropped(out, dropout)
        out = self.mlp(self.post_attention_layernorm(hidden)).float()
        return hidden + dropped(out, dropout)


class Qwen35(nn.Module):
    """The whole model: token ids [batch, time] to the hidden states before the output projection."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(
            Layer(config, kind) for kind in config.layer_types
        )
        self.model.norm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        initialise(self)

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers."""
        return self.model.layers

    def forward(
        self,
        ids: Tensor,
        dropout: Tensor | None = None,
        caches: list[dict[str, Tensor]] | None = None,
    ) -> Tensor:
        """Hidden states; ``caches``, one dict a layer, carry the recurrent states between calls."""
        hidden = self.model.embed_tokens(ids)
        for i, layer in enumerate(self.model.layers):
            hidden = layer(hidden, dropout, None if caches is None else caches[i])
        return self.model.norm(hidden)

    def logits(self, ids: Tensor) -> Tensor:
        """Logits [batch, time, vocab], float32; any length (padded to whole chunks inside)."""
        time = ids.shape[1]
        pad = -time % self.config.chunk
        return self.lm_head(self(F.pad(ids, (0, pad)))[:, :time]).float()
