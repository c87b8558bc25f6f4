"""Weights from a file, read without running code from it and loaded strictly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from orchestrator.errors import CheckpointError, ConfigError

WRAPPERS = ("model", "state_dict", "model_state_dict")
"""Keys under which training programs keep the weights in a checkpoint."""

PREFIXES = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before each name, in the order in which they were applied."""

_MOST_NAMES = 10
_FORBIDDEN = re.compile(r"Unsupported (?:global: GLOBAL|class) (\S+)")


def load_pretrained(model: nn.Module, path: str) -> None:
    """Put the weights in the file `path` into `model`, in place.

    Every name and shape has to fit, no matter which of `PREFIXES` stand before the names of either side. Raises
    `CheckpointError` with the names that do not fit, and what `read_weights` raises.
    """
    weights = read_weights(path)
    own = _with_bare_names(model.state_dict())
    faults = [
        *_list("missing", own.keys() - weights.keys(), own),
        *_list("unexpected", weights.keys() - own.keys(), weights),
        *_mismatches({name: value for name, (_, value) in own.items()}, weights),
    ]
    if faults:
        raise CheckpointError(f"{path} does not fit the model: {'; '.join(faults)}")
    model.load_state_dict({own[name][0]: value for name, value in weights.items()}, strict=True)


def read_weights(path: str) -> dict[str, Tensor]:
    """The tensors in a `.safetensors` file or a file of `torch.save`, on the CPU, by their names without `PREFIXES`.

    A file of `torch.save` may hold the state dict itself, or a dict that has it under one of `WRAPPERS`. It is read
    with `weights_only=True`, so that no code in it runs. Raises `ConfigError` if there is no such file, and
    `CheckpointError` if it is damaged, holds other objects, is no state dict, or has a value that is not finite.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"--pretrained {path}: there is no such file")
    if file.stat().st_size == 0:
        raise CheckpointError(f"{path} is empty (0 bytes); copy or download it again")
    content = _read_safetensors(path) if file.suffix == ".safetensors" else _read_torch(path)
    weights = {name: value for name, (_, value) in _with_bare_names(_find_state_dict(path, content)).items()}
    broken = [name for name, value in weights.items() if not _is_finite(value)]
    if broken:
        raise CheckpointError(f"{path} has values that are NaN or infinite in {_some(broken)}")
    return weights


def _read_safetensors(path: str) -> object:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise _unreadable(path, error) from error


def _read_torch(path: str) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        forbidden = _FORBIDDEN.search(str(error))
        if forbidden is None:
            raise _unreadable(path, error) from error
        raise CheckpointError(
            f"{path} was refused: it contains {forbidden[1]}, and loading anything but tensors and plain values can "
            "run code; save only the weights, with torch.save(model.state_dict(), ...) or as .safetensors"
        ) from error
    # A damaged file can make the readers of zip, tar and pickle fail in any way; the cause is chained.
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> CheckpointError:
    reason = re.split(r"\. |\n", str(error), maxsplit=1)[0]
    return CheckpointError(
        f"{path} is damaged or not a file of weights ({type(error).__name__}: {reason}); copy or download it again"
    )


def _find_state_dict(path: str, content: object) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        wrapped = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        content = wrapped[0] if wrapped else content
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds no state dict, but {type(content).__name__}")
    if not content:
        raise CheckpointError(f"{path} holds an empty state dict")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout is not torch.strided:
            raise CheckpointError(
                f"{path} holds no state dict: the value of {name!r} is {type(value).__name__}, not a dense tensor "
                f"(a state dict is looked for at the top and under {', '.join(WRAPPERS)})"
            )
    return dict(content)


def _with_bare_names(state_dict: Mapping[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
    """Maps each name without the prefixes that all names share to the full name and the value."""
    start = 0
    names = list(state_dict)
    while names and (shared := [p for p in PREFIXES if all(name.startswith(p, start) for name in names)]):
        start += len(shared[0])
    return {name[start:]: (name, value) for name, value in state_dict.items()}


def _is_finite(value: Tensor) -> bool:
    if not (value.is_floating_point() or value.is_complex()):
        return True
    # The 8-bit types have no isfinite.
    wide = value.float() if value.element_size() == 1 else value
    return bool(torch.isfinite(wide).all())


def _list(what: str, names: Iterable[str], order: Iterable[str]) -> list[str]:
    wanted = set(names)
    ordered = [name for name in order if name in wanted]
    return [f"{len(ordered)} {what}: {_some(ordered)}"] if ordered else []


def _some(names: list[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _mismatches(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    shared = [name for name in own if name in weights]
    wrong = [name for name in shared if _kind(own[name]) != _kind(weights[name])]
    if not wrong:
        return []
    described = [f"{name} (file {_describe(weights[name])}, model {_describe(own[name])})" for name in wrong]
    fault = f"{len(wrong)} of another shape or type: {_some(described)}"
    layer = list(own)[-1].rpartition(".")[0]
    if all(name.rpartition(".")[0] == layer and _differ_in_rows(own[name], weights[name]) for name in wrong):
        fault += (
            f"; the last layer, {layer}, has {weights[wrong[0]].shape[0]} classes in the file "
            f"and {own[wrong[0]].shape[0]} here"
        )
    return [fault]


def _kind(value: Tensor) -> tuple[torch.Size, bool, bool]:
    return value.shape, value.is_floating_point(), value.is_complex()


def _describe(value: Tensor) -> str:
    return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"


def _differ_in_rows(own: Tensor, other: Tensor) -> bool:
    return own.dim() > 0 and own.dim() == other.dim() and own.shape[1:] == other.shape[1:]
