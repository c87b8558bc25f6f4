"""From the option `--model` to a network, and the check that the network fits the data."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError
from orchestrator.models.cnn import Cnn, CnnBn
from orchestrator.models.imported import build_imported
from orchestrator.models.torchvision_models import PREFIX, build_torchvision, torchvision_names

OWN_MODELS: dict[str, type[Cnn] | type[CnnBn]] = {"cnn": Cnn, "cnn-bn": CnnBn}


def build_model(config: TrainConfig, *, channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """The network of `config.model` on the CPU in fp32, with random weights.

    They come from PyTorch's global generator, which the caller has seeded. Raises `ConfigError` for a network that
    does not exist or cannot be built for this data.
    """
    name = config.model
    if name in OWN_MODELS:
        return OWN_MODELS[name](channels=channels, height=height, width=width, num_classes=num_classes)
    if name.startswith(PREFIX):
        return build_torchvision(
            name.removeprefix(PREFIX), channels=channels, height=height, width=width, num_classes=num_classes
        )
    if ":" in name:
        return build_imported(name, channels=channels, height=height, width=width, num_classes=num_classes)
    raise _unknown_model(name)


def _unknown_model(name: str) -> ConfigError:
    hint = f" (did you mean {PREFIX}{name}?)" if name in torchvision_names() else ""
    return ConfigError(
        f"--model {name}: there is no such network{hint}; "
        f"give {', '.join(OWN_MODELS)}, {PREFIX}NAME or package.module:function"
    )


def check_model(
    model: nn.Module, channels: int, height: int, width: int, num_classes: int, name: str | None = None
) -> None:
    """Run `model` once on two zero images, in evaluation mode on the CPU.

    Raises `ConfigError`, naming `name` (None: the class), if it fails or gives anything but floating-point logits of
    shape (2, `num_classes`). Leaves the modes of the network, its buffers and the CPU generator as they were.
    """
    name = name or type(model).__name__
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        raise ConfigError(f"--model {name} has lazy layers; give each layer its sizes")
    described = f"--model {name} on {channels}x{height}x{width} images (channels x height x width)"
    logits = _forward_zeros(model, torch.zeros(2, channels, height, width), described)
    if not isinstance(logits, Tensor):
        raise ConfigError(f"{described} returns {type(logits).__name__}, but one tensor of logits is needed")
    if logits.shape != (2, num_classes) or not logits.is_floating_point():
        raise ConfigError(
            f"{described} returns {logits.dtype} of shape {tuple(logits.shape)} for 2 images, "
            f"but logits of shape (2, {num_classes}) are needed: the data has {num_classes} classes"
        )


def _forward_zeros(model: nn.Module, images: Tensor, described: str) -> object:
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model(images)
    # Networks refuse what they cannot take with whatever exception comes up inside; the cause is chained.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{described} fails: {type(error).__name__}: {reason}; give another --image-size or --model"
        ) from error
    finally:
        for module, mode in training:
            module.training = mode


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Numbers of values in the parameters: all, and those that are trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def has_unused_parameters(model: nn.Module, config: TrainConfig, channels: int, height: int, width: int) -> bool:
    """Whether some trained parameter takes no part in the output, found by one backward pass of a copy on the CPU.

    Only a network of the user's own is tried; those of this package and of torchvision use all they have.
    """
    if config.model in OWN_MODELS or config.model.startswith(PREFIX):
        return False
    copy = deepcopy(model).train()
    with torch.random.fork_rng(devices=[]):
        logits: Tensor = copy(torch.zeros(2, channels, height, width))
        logits.float().sum().backward()  # type: ignore[no-untyped-call]
    return any(parameter.grad is None for parameter in copy.parameters() if parameter.requires_grad)
