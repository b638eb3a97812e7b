"""The training forward of a dense ``kimi_linear`` model, in plain PyTorch.

Parameters carry the names of released checkpoints (``model.layers.N.self_attn.q_conv1d.weight``, ...),
so that a state dict is a checkpoint.
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
    initialise,
    kimi_delta_rule,
    l2_normalised,
)


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
    chunk: int = 32
    bos_token_id: int = 2045
    eos_token_id: int = 2046
    pad_token_id: int = 2047

    def to_json(self) -> dict[str, object]:
        """Contents of ``config.json``."""
        numbers = {
            kind: [i + 1 for i, t in enumerate(self.layer_types) if t == kind]
            for kind in ("linear_attention", "full_attention")
        }
        layers = len(self.layer_types)
        return {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": False,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": layers,
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
            "first_k_dense_replace": layers,
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


class Norm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * self.weight


class KimiDeltaAttention(nn.Module):
    """Projections, three convolutions, the rule with a decay a channel, norm with sigmoid gate."""

    def __init__(self, config: KimiLinearConfig) -> None:
        super().__init__()
        self.config = config
        hidden, size = config.hidden_size, config.linear_head_dim
        width, heads = config.linear_num_heads * size, config.linear_num_heads
        for name in "qkv":
            setattr(self, f"{name}_proj", nn.Linear(hidden, width, bias=False))
            conv = nn.Conv1d(
                width, width, config.linear_conv_kernel_dim, groups=width, bias=False
            )
            setattr(self, f"{name}_conv1d", conv)
        self.f_a_proj = nn.Linear(hidden, size, bias=False)
        self.f_b_proj = nn.Linear(size, width, bias=False)
        self.b_proj = nn.Linear(hidden, heads, bias=False)
        self.g_a_proj = nn.Linear(hidden, size, bias=False)
        self.g_b_proj = nn.Linear(size, width, bias=False)
        dt = torch.exp(torch.empty(width).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(
            torch.log(torch.empty(1, 1, heads, 1).uniform_(1.0, 16.0))
        )
        self.o_norm = HeadNorm(size, config.rms_norm_eps, "sigmoid")
        self.o_proj = nn.Linear(width, hidden, bias=False)

    def gates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay [batch, time, heads, K] and write strength [batch, time, heads], float32."""
        raw = self.f_b_proj(self.f_a_proj(hidden)).float() + self.dt_bias
        raw = raw.unflatten(-1, (-1, self.config.linear_head_dim))
        g = -torch.exp(self.A_log.float()) * F.softplus(raw)
        return g, torch.sigmoid(self.b_proj(hidden).float())

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        size, chunk = self.config.linear_head_dim, self.config.chunk
        odd = hidden.shape[1] % chunk != 0
        mixed = causal_conv(
            torch.cat([p(hidden) for p in (self.q_proj, self.k_proj, self.v_proj)], -1),
            torch.cat(
                [c.weight[:, 0] for c in (self.q_conv1d, self.k_conv1d, self.v_conv1d)]
            ),
            cache,
        )
        q, k, v = (x.unflatten(-1, (-1, size)) for x in mixed.chunk(3, -1))
        q, k = l2_normalised(q), l2_normalised(k)
        gate = self.g_b_proj(self.g_a_proj(hidden)).unflatten(-1, (-1, size))
        g, beta = self.gates(hidden)
        state = None if cache is None else cache.get("state")
        with torch.autocast(hidden.device.type, enabled=False):
            o, state = kimi_delta_rule(
                q * size**-0.5,
                k,
                v,
                g,
                beta,
                hidden.shape[1] if odd else chunk,
                state,
                exact=odd or not self.training,
            )
        if cache is not None:
            cache["state"] = state
        return self.o_proj(self.o_norm(o, gate).flatten(-2))


class LatentAttention(nn.Module):
    """Causal attention over keys and values expanded from one latent (MLA), without rotation."""

    def __init__(self, config: KimiLinearConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.num_attention_heads
        self.size = config.qk_nope_head_dim + config.qk_rope_head_dim
        self.q_proj = nn.Linear(hidden, heads * self.size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(
            hidden, config.kv_lora_rank + config.qk_rope_head_dim, bias=False
        )
        # transformers fixes this norm's eps, whatever the configuration says.
        self.kv_a_layernorm = Norm(config.kv_lora_rank, 1e-6)
        self.kv_b_proj = nn.Linear(
            config.kv_lora_rank,
            heads * (config.qk_nope_head_dim + config.v_head_dim),
            bias=False,
        )
        self.o_proj = nn.Linear(heads * config.v_head_dim, hidden, bias=False)

    def forward(self, hidden: Tensor, cache: dict | None = None) -> Tensor:
        if cache is not None:
            raise NotImplementedError("attention here has no cache")
        cfg, heads = self.config, self.config.num_attention_heads
        q = self.q_proj(hidden).unflatten(-1, (heads, self.size))
        latent, shared = self.kv_a_proj_with_mqa(hidden).split(
            [cfg.kv_lora_rank, cfg.qk_rope_head_dim], dim=-1
        )
        k, v = (
            self.kv_b_proj(self.kv_a_layernorm(latent))
            .unflatten(-1, (heads, -1))
            .split([cfg.qk_nope_head_dim, cfg.v_head_dim], dim=-1)
        )
        k = torch.cat([k, shared.unsqueeze(-2).expand(-1, -1, heads, -1)], -1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """Mixer and feed-forward network, each after a norm and added to the residual."""

    def __init__(self, config: KimiLinearConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = (
            KimiDeltaAttention if kind == "linear_attention" else LatentAttention
        )(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGlu(config.hidden_size, config.intermediate_size)

    @property
    def mixer(self) -> nn.Module:
        """The attention of this layer, of whichever kind."""
        return self.self_attn

    def forward(
        self,
        hidden: Tensor,
        dropout: Tensor | None = None,
        cache: dict[str, Tensor] | None = None,
    ) -> Tensor:
        out = self.self_attn(self.input_layernorm(hidden), cache).float()
        hidden = hidden + dropped(out, dropout)
        out = self.mlp(self.post_attention_layernorm(hidden)).float()
        return hidden + dropped(out, dropout)


class KimiLinear(nn.Module):
    """The whole model: token ids [batch, time] to the hidden states before ``lm_head``."""

    def __init__(self, config: KimiLinearConfig) -> None:
        super().__init__()
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(
            Layer(config, kind) for kind in config.layer_types
        )
        self.model.norm = Norm(config.hidden_size, config.rms_norm_eps)
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
