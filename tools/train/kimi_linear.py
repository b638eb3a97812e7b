"""The training forward of a dense ``kimi_linear`` model, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layers
from delta_rule import HeadNorm, kimi_delta_rule, l2_normalised


@dataclass(frozen=True)
class KimiLinearConfig:
    """Shape of the model; most names are those of ``config.json``.

    ``layer_types`` and the ``linear_`` fields are written in the released form, a list of layers
    that counts from 1 and a dictionary.
    """

    vocab_size: int = 2048
    hidden_size: int = 160
    intermediate_size: int = 192
    layer_types: tuple[str, ...] = ("linear_attention",) * 3 + ("full_attention",)
    linear_num_heads: int = 2
    linear_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    num_attention_heads: int = 4
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 64
    rms_norm_eps: float = 1e-6
    chunk_size: int = 32
    bos_token_id: int = 2045
    eos_token_id: int = 2046
    pad_token_id: int = 2047

    def to_json(self) -> dict[str, object]:
        """Contents of ``config.json``."""
        numbers = {
            kind: [i + 1 for i, t in enumerate(self.layer_types) if t == kind]
            for kind in ("linear_attention", "full_attention")
        }
        depth = len(self.layer_types)
        return {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": False,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": depth,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "linear_attn_config": {
                "kda_layers": numbers["linear_attention"],
                "full_attn_layers": numbers["full_attention"],
                "num_heads": self.linear_num_heads,
                "head_dim": self.linear_head_dim,
                "short_conv_kernel_size": self.linear_conv_kernel_dim,
            },
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_attention_heads,
            "q_lora_rank": None,
            "kv_lora_rank": self.kv_lora_rank,
            "qk_nope_head_dim": self.qk_nope_head_dim,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            "v_head_dim": self.v_head_dim,
            "mla_use_nope": True,
            # Every layer's feed-forward network is dense: the experts begin behind the last layer.
            "first_k_dense_replace": depth,
            "moe_layer_freq": 1,
            "num_experts": 0,
            "num_experts_per_token": 0,
            "num_shared_experts": 0,
            "moe_intermediate_size": self.intermediate_size,
            "num_nextn_predict_layers": 0,
            "model_max_length": 1048576,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
        }

    @classmethod
    def from_json(cls, raw: dict) -> KimiLinearConfig:
        """Read back what :meth:`to_json` wrote."""
        fields = {k: raw[k] for k in cls.__dataclass_fields__ if k in raw}
        linear = raw["linear_attn_config"]
        fields["layer_types"] = tuple(
            "linear_attention" if i + 1 in linear["kda_layers"] else "full_attention"
            for i in range(raw["num_hidden_layers"])
        )
        fields["linear_num_heads"] = linear["num_heads"]
        fields["linear_head_dim"] = linear["head_dim"]
        fields["linear_conv_kernel_dim"] = linear["short_conv_kernel_size"]
        return cls(**fields)


class KimiDeltaAttention(nn.Module):
    """Projections, three convolutions, the rule with a decay a channel, norm with sigmoid gate."""

    def __init__(self, config: KimiLinearConfig) -> None:
        super().__init__()
        self.config = config
        hidden, size = config.hidden_size, config.linear_head_dim
        width, heads = config.linear_num_heads * size, config.linear_num_heads
        for name in "qkv":
            setattr(self, f"{name}_proj", layers.linear(hidden, width))
            conv = layers.depthwise(width, config.linear_conv_kernel_dim)
            setattr(self, f"{name}_conv1d", conv)
        self.f_a_proj = layers.linear(hidden, size)
        self.f_b_proj = layers.linear(size, width)
        self.b_proj = layers.linear(hidden, heads)
        self.g_a_proj = layers.linear(hidden, size)
        self.g_b_proj = layers.linear(size, width)
        self.dt_bias = layers.initial_dt_bias(width)
        self.A_log = layers.initial_log_rates(1, 1, heads, 1)
        self.o_norm = HeadNorm(size, config.rms_norm_eps, torch.sigmoid)
        self.o_proj = layers.linear(width, hidden)

    def gates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay [batch, time, heads, K] and write strength [batch, time, heads], float32."""
        raw = self.f_b_proj(self.f_a_proj(hidden)).float() + self.dt_bias
        raw = raw.unflatten(-1, (-1, self.config.linear_head_dim))
        g = -torch.exp(self.A_log.float()) * F.softplus(raw)
        return g, torch.sigmoid(self.b_proj(hidden).float())

    def forward(self, hidden: Tensor, cache: layers.Cache | None = None) -> Tensor:
        size, chunk = self.config.linear_head_dim, self.config.chunk_size
        mixed = layers.causal_conv(
            torch.cat([p(hidden) for p in (self.q_proj, self.k_proj, self.v_proj)], -1),
            torch.cat(
                [c.weight for c in (self.q_conv1d, self.k_conv1d, self.v_conv1d)]
            ),
            None,
            cache,
        )
        q, k, v = (x.unflatten(-1, (-1, size)) for x in mixed.chunk(3, -1))
        q, k = l2_normalised(q), l2_normalised(k)
        gate = self.g_b_proj(self.g_a_proj(hidden)).unflatten(-1, (-1, size))
        inputs = (q * size**-0.5, k, v, *self.gates(hidden))
        # The block form takes whole chunks only.
        exact = hidden.shape[1] % chunk != 0 or not self.training
        o = layers.recur(kimi_delta_rule, inputs, chunk, cache, exact=exact)
        return self.o_proj(self.o_norm(o, gate).flatten(-2))


class LatentAttention(nn.Module):
    """Causal attention over keys and values expanded from one latent (MLA), without rotation."""

    def __init__(self, config: KimiLinearConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.num_attention_heads
        rank, nope = config.kv_lora_rank, config.qk_nope_head_dim
        shared, value = config.qk_rope_head_dim, config.v_head_dim
        self.q_proj = layers.linear(hidden, heads * (nope + shared))
        self.kv_a_proj_with_mqa = layers.linear(hidden, rank + shared)
        # transformers fixes this norm's eps, whatever the configuration says.
        self.kv_a_layernorm = layers.RMSNorm(rank, 1e-6)
        self.kv_b_proj = layers.linear(rank, heads * (nope + value))
        self.o_proj = layers.linear(heads * value, hidden)

    def forward(self, hidden: Tensor, cache: layers.Cache | None = None) -> Tensor:
        cfg, heads = self.config, self.config.num_attention_heads
        q = self.q_proj(hidden).unflatten(-1, (heads, -1))
        latent, shared = self.kv_a_proj_with_mqa(hidden).split(
            [cfg.kv_lora_rank, cfg.qk_rope_head_dim], dim=-1
        )
        k, v = (
            self.kv_b_proj(self.kv_a_layernorm(latent))
            .unflatten(-1, (heads, -1))
            .split([cfg.qk_nope_head_dim, cfg.v_head_dim], dim=-1)
        )
        k = torch.cat([k, shared.unsqueeze(-2).expand(-1, -1, heads, -1)], -1)
        return self.o_proj(layers.attend(q, k, v, cache).flatten(-2))


def _layer(config: KimiLinearConfig, kind: str) -> layers.DecoderLayer:
    mixer = {
        "linear_attention": KimiDeltaAttention,
        "full_attention": LatentAttention,
    }[kind]
    return layers.DecoderLayer(config, "self_attn", mixer(config), layers.RMSNorm)


class KimiLinear(layers.LanguageModel):
    """A model of the family."""

    def __init__(self, config: KimiLinearConfig) -> None:
        norm = layers.RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, _layer, config.layer_types, norm)
