"""Initial weights of a delta-rule model from a trained ``nemotron_h`` model of the same hidden size.

The two compute different things, so this is a place to begin, not a conversion: [x | B | C] of Mamba-2
become [v | k | q], its gate z the output gate, its step sizes the gates, and relu(u)^2 is nearly
silu(u) u. What has no counterpart keeps its random values.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import families
import vocabulary
from kimi_linear import KimiDeltaAttention, KimiLinear
from nemotron_h import Attention, Mamba2, Mlp
from qwen3_5 import GatedAttention, GatedDeltaNet, Qwen35


def _vocabulary_order(
    words: vocabulary.Vocabulary, theirs: vocabulary.Vocabulary, size: int
) -> Tensor:
    """For each id its id in the other vocabulary.

    ``tokenizer.json`` begins with the three special tokens, a tiktoken vocabulary of the same merges
    ends with them.
    """
    order = torch.arange(size)
    special, known = (
        [words.bos, words.eos, words.pad],
        [theirs.bos, theirs.eos, theirs.pad],
    )
    order[[i for i in range(size) if i not in special]] = torch.tensor(
        [i for i in range(size) if i not in known]
    )
    order[special] = torch.tensor(known)
    return order


def _pairs(x: Tensor, heads: int) -> Tensor:
    """Mean over neighbouring heads, so that ``heads`` remain."""
    return x.unflatten(0, (heads, -1)).mean(1)


class _Parts:
    """Weights of a Mamba-2 mixer by what they make: rows of its projection, taps of its convolution."""

    def __init__(self, mixer: Mamba2) -> None:
        inner, heads = mixer.convolved[0], mixer.config.mamba_num_heads
        self.z, self.x, self.b, self.c, self.dt = mixer.in_proj.weight.split(
            [inner, *mixer.convolved, heads]
        )
        self.taps_x, self.taps_b, self.taps_c = mixer.conv1d.weight.split(
            mixer.convolved
        )
        # The norm's weight has no place of its own before the output projection.
        self.out = mixer.out_proj.weight * mixer.norm.weight


def _gdn(new: GatedDeltaNet, old: Mamba2) -> None:
    parts, heads = _Parts(old), new.config.linear_num_value_heads
    new.in_proj_qkv.weight.copy_(torch.cat([parts.c, parts.b, parts.x]))
    new.conv1d.weight.copy_(torch.cat([parts.taps_c, parts.taps_b, parts.taps_x]))
    new.in_proj_z.weight.copy_(parts.z)
    new.in_proj_a.weight.copy_(_pairs(parts.dt, heads))
    new.in_proj_b.weight.copy_(_pairs(parts.dt, heads))
    new.dt_bias.copy_(_pairs(old.dt_bias, heads))
    new.A_log.copy_(_pairs(old.A_log, heads))
    new.out_proj.weight.copy_(parts.out)


def _kda(new: KimiDeltaAttention, old: Mamba2) -> None:
    parts, heads = _Parts(old), new.config.linear_num_heads
    new.q_proj.weight.copy_(parts.c.repeat(heads, 1))
    new.k_proj.weight.copy_(parts.b.repeat(heads, 1))
    new.v_proj.weight.copy_(parts.x)
    new.q_conv1d.weight.copy_(parts.taps_c.repeat(heads, 1, 1))
    new.k_conv1d.weight.copy_(parts.taps_b.repeat(heads, 1, 1))
    new.v_conv1d.weight.copy_(parts.taps_x)
    new.b_proj.weight.copy_(_pairs(parts.dt, heads))
    size = new.config.linear_head_dim
    new.dt_bias.copy_(_pairs(old.dt_bias, heads).repeat_interleave(size))
    new.A_log.copy_(_pairs(old.A_log, heads).view(1, 1, heads, 1))
    # The decay of every channel begins as that of its head: rank one a head of the low-rank gate.
    rows = _pairs(parts.dt, heads)
    new.f_a_proj.weight[:heads].copy_(rows)
    new.f_b_proj.weight.mul_(0.1)
    for h in range(heads):
        new.f_b_proj.weight[h * size : (h + 1) * size, :heads].zero_()
        new.f_b_proj.weight[h * size : (h + 1) * size, h].fill_(1.0)
    u, s, v = torch.linalg.svd(parts.z, full_matrices=False)
    root = s[:size].sqrt()
    new.g_a_proj.weight.copy_(root[:, None] * v[:size])
    new.g_b_proj.weight.copy_(u[:, :size] * root)
    new.o_proj.weight.copy_(parts.out)


def _attention(new: GatedAttention, old: Attention) -> None:
    size = new.config.head_dim
    query = new.q_proj.weight.unflatten(0, (-1, 2, size))
    query[:, 0].copy_(old.q_proj.weight.unflatten(0, (-1, size)))
    query[:, 1].mul_(0.1)
    new.k_proj.weight.copy_(old.k_proj.weight)
    new.v_proj.weight.copy_(old.v_proj.weight)
    new.o_proj.weight.copy_(2.0 * old.o_proj.weight)  # the new gate begins near 1/2


def _mlp(new: nn.Module, old: Mlp) -> None:
    """Keep the units with the largest weights."""
    width = new.gate_proj.weight.shape[0]
    up, down = old.up_proj.weight, old.down_proj.weight
    weight = up.square().sum(1) * down.norm(dim=0)
    keep = weight.topk(min(width, len(weight))).indices
    new.gate_proj.weight[: len(keep)].copy_(up[keep])
    new.up_proj.weight[: len(keep)].copy_(up[keep])
    new.down_proj.weight[:, : len(keep)].copy_(down[:, keep])


@torch.no_grad()
def begin_from(
    model: Qwen35 | KimiLinear, words: vocabulary.Vocabulary, folder: Path
) -> None:
    """Copy what has a counterpart: layers are matched in order, mixers and networks apart.

    With more recurrent layers in the old model than in the new one, the first ones are taken; the
    new model's last network gets the old one's last, the others are matched in order.
    """
    old, theirs = families.load(folder), vocabulary.load(folder)
    order = _vocabulary_order(words, theirs, model.config.vocab_size)
    model.embeddings.weight.copy_(old.embeddings.weight[order])
    model.lm_head.weight.copy_(old.lm_head.weight[order])
    centre = 1.0 if isinstance(model, Qwen35) else 0.0
    model.last_norm.weight.copy_(old.last_norm.weight - centre)
    blocks = list(old.layers)
    mamba = [b for b in blocks if isinstance(b.mixer, Mamba2)]
    attention = [b for b in blocks if isinstance(b.mixer, Attention)]
    networks = [b for b in blocks if isinstance(b.mixer, Mlp)]
    for number, layer in enumerate(model.layers):
        mixer = layer.mixer
        if isinstance(mixer, (GatedDeltaNet, KimiDeltaAttention)) and mamba:
            block = mamba.pop(0)
            (_gdn if isinstance(mixer, GatedDeltaNet) else _kda)(mixer, block.mixer)
            layer.input_layernorm.weight.copy_(block.norm.weight - centre)
        elif isinstance(mixer, GatedAttention) and attention:
            block = attention.pop(0)
            _attention(mixer, block.mixer)
            layer.input_layernorm.weight.copy_(block.norm.weight - centre)
        last = number + 1 == len(model.layers)
        if networks and (last or len(networks) > 1):
            block = networks.pop(0)
            _mlp(layer.mlp, block.mixer)
            layer.post_attention_layernorm.weight.copy_(block.norm.weight - centre)
