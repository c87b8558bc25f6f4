"""The weights of a model under plain names, and their fingerprint."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """State dict of the bare model on the CPU, contiguous. `model` must not be wrapped."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def weights_sha256(weights: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names (sorted), dtypes, shapes and little-endian bytes, each field closed by a zero byte."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        for field in (name, str(tensor.dtype), "x".join(map(str, tensor.shape))):
            digest.update(field.encode() + b"\0")
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()
