"""The model families by name, and how their folders are written and read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from kimi_linear import KimiLinear, KimiLinearConfig
from nemotron_h import NemotronH, NemotronHConfig
from qwen3_5 import Qwen35, Qwen35Config

FAMILIES: dict[str, tuple[type, type]] = {
    "nemotron_h": (NemotronHConfig, NemotronH),
    "qwen3_5": (Qwen35Config, Qwen35),
    "kimi_linear": (KimiLinearConfig, KimiLinear),
}
_BY_MODEL_TYPE = {
    "nemotron_h": "nemotron_h",
    "qwen3_5_text": "qwen3_5",
    "kimi_linear": "kimi_linear",
}


def export(model: nn.Module, folder: Path, *, generation: bool = True) -> None:
    """Write ``model.safetensors`` (bf16), ``config.json`` and ``generation_config.json``."""
    raw = model.config.to_json()
    tensors = {
        k: v.detach().to(torch.bfloat16).contiguous().cpu()
        for k, v in model.state_dict().items()
    }
    file = folder / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors makes it readable for its owner only
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    if generation:
        settings = {
            "bos_token_id": raw["bos_token_id"],
            "eos_token_id": raw["eos_token_id"],
            "pad_token_id": raw["pad_token_id"],
            "do_sample": True,
            "temperature": 0.8,
            "top_p": 0.95,
        }
        (folder / "generation_config.json").write_text(
            json.dumps(settings, indent=2) + "\n"
        )


def load(folder: Path) -> nn.Module:
    """Load a folder's weights into its training model, in float32, ready for evaluation."""
    raw = json.loads((folder / "config.json").read_text())
    config_type, model_type = FAMILIES[_BY_MODEL_TYPE[raw["model_type"]]]
    model = model_type(config_type.from_json(raw))
    model.load_state_dict(
        {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    )
    return model.eval()
