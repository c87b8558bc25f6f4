"""The classification networks of torchvision, fitted to the channels, the size and the classes of the data."""

from __future__ import annotations

import difflib
from typing import Any

from torch import nn

from orchestrator.errors import ConfigError

PREFIX = "torchvision/"


def torchvision_names() -> list[str]:
    """Names of torchvision's classification networks, without the prefix."""
    # Imported here because it costs two seconds of CPU time, which a run of another network should not pay.
    import torchvision.models

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def build_torchvision(name: str, *, channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Network `name` of torchvision with random weights, for images of `channels` x `height` x `width`.

    Raises `ConfigError` if there is no such network, or if it cannot be built for this size.
    """
    names = torchvision_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5) or ["resnet18", "mobilenet_v3_small"]
        raise ConfigError(
            f"--model {PREFIX}{name}: torchvision has no classification network {name!r}; "
            f"the nearest are {', '.join(PREFIX + other for other in near)}"
        )
    import torchvision.models

    special = _special_arguments(name, height, width)
    try:
        model: nn.Module = torchvision.models.get_model(name, num_classes=num_classes, **special)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"--model {PREFIX}{name} cannot be built for images of {height}x{width} pixels: {reason} "
            "Give another --image-size"
        ) from error
    _adapt_first_convolution(model, channels)
    return model


def _special_arguments(name: str, height: int, width: int) -> dict[str, Any]:
    if name in ("googlenet", "inception_v3"):
        # The auxiliary heads return a tuple in training; init_weights has a default that warns.
        return {"aux_logits": False, "init_weights": True}
    if name == "maxvit_t":
        return {"input_size": (height, width)}
    if name.startswith("vit_"):
        patch = int(name.rpartition("_")[2])
        if height != width or height % patch:
            raise ConfigError(
                f"--model {PREFIX}{name} takes square images whose side is a multiple of {patch} pixels, "
                f"these are {height}x{width}; give --image-size {max(1, round(max(height, width) / patch)) * patch}"
            )
        return {"image_size": height}
    return {}


def _adapt_first_convolution(model: nn.Module, channels: int) -> None:
    """Give the first convolution `channels` inputs, and keep its other settings.

    Each new input weight is the sum over the old ones, shared among the channels: a grey image then gives what the
    network gives for it as RGB, and the variance that its initialisation was made for is kept.
    """
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    if first.in_channels == channels:
        return
    summed = first.weight.detach().sum(1, keepdim=True)
    first.in_channels = channels
    first.weight = nn.Parameter(summed.repeat(1, channels, 1, 1) / channels)
