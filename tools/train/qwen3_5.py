"""The training forward of a dense, text-only ``qwen3_5`` model, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layers
from delta_rule import HeadNorm, gated_delta_rule, l2_normalised


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
    chunk_size: int = 32
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


class ZeroCentredNorm(layers.RMSNorm):
    """RMSNorm that adds 1 to its weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return layers.unit_rms(x, self.eps) * (1.0 + self.weight)


class GatedDeltaNet(nn.Module):
    """Projections, convolution over [q | k | v], gated delta rule, gated norm."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        heads, hidden = config.linear_num_value_heads, config.hidden_size
        key = config.linear_num_key_heads * config.linear_key_head_dim
        value = heads * config.linear_value_head_dim
        self.convolved = [key, key, value]  # q, k, v
        channels = sum(self.convolved)
        self.in_proj_qkv = layers.linear(hidden, channels)
        self.in_proj_z = layers.linear(hidden, value)
        self.in_proj_b = layers.linear(hidden, heads)
        self.in_proj_a = layers.linear(hidden, heads)
        self.conv1d = layers.depthwise(channels, config.linear_conv_kernel_dim)
        self.dt_bias = layers.initial_dt_bias(heads)
        self.A_log = layers.initial_log_rates(heads)
        self.norm = HeadNorm(config.linear_value_head_dim, config.rms_norm_eps, F.silu)
        self.out_proj = layers.linear(value, hidden)

    def gates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay and write strength, each [batch, time, heads], float32."""
        g = -torch.exp(self.A_log.float()) * F.softplus(
            self.in_proj_a(hidden).float() + self.dt_bias
        )
        return g, torch.sigmoid(self.in_proj_b(hidden).float())

    def forward(self, hidden: Tensor, cache: layers.Cache | None = None) -> Tensor:
        key, value = self.config.linear_key_head_dim, self.config.linear_value_head_dim
        mixed = layers.causal_conv(
            self.in_proj_qkv(hidden), self.conv1d.weight, None, cache
        )
        q, k, v = mixed.split(self.convolved, dim=-1)
        q, k = (l2_normalised(x.unflatten(-1, (-1, key))) for x in (q, k))
        v = v.unflatten(-1, (-1, value))
        z = self.in_proj_z(hidden).unflatten(-1, (-1, value))
        inputs = (q * key**-0.5, k, v, *self.gates(hidden))
        o = layers.recur(gated_delta_rule, inputs, self.config.chunk_size, cache)
        return self.out_proj(self.norm(o, z).flatten(-2))


class GatedAttention(layers.GroupedQueryAttention):
    """Causal attention with normalised q and k, rotation of the first dimensions, and an output gate."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__(config, 2 * config.head_dim)
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

    def forward(self, hidden: Tensor, cache: layers.Cache | None = None) -> Tensor:
        q, k, v = self.projected(hidden)
        q, gate = q.chunk(2, -1)
        q, k = self._rotated(self.q_norm(q)), self._rotated(self.k_norm(k))
        y = layers.attend(q.to(v.dtype), k.to(v.dtype), v, cache)
        return self.o_proj((y * torch.sigmoid(gate)).flatten(-2))


def _layer(config: Qwen35Config, kind: str) -> layers.DecoderLayer:
    name, mixer = {
        "linear_attention": ("linear_attn", GatedDeltaNet),
        "full_attention": ("self_attn", GatedAttention),
    }[kind]
    return layers.DecoderLayer(config, name, mixer(config), ZeroCentredNorm)


class Qwen35(layers.LanguageModel):
    """A model of the family."""

    def __init__(self, config: Qwen35Config) -> None:
        norm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, _layer, config.layer_types, norm)
