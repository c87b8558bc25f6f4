"""Networks from the user's own code, given as `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from orchestrator.errors import ConfigError


def build_imported(reference: str, *, channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """What the function of `reference` returns.

    It is called with those of the keywords `num_classes`, `in_channels` and `image_size=(height, width)` that its
    signature takes. Raises `ConfigError` if it cannot be imported, fails, or returns no `nn.Module`.
    """
    function = _find_function(reference)
    keywords = {"num_classes": num_classes, "in_channels": channels, "image_size": (height, width)}
    accepted = _accepted(function, keywords)
    try:
        model = function(**accepted)
    # The user's code may raise anything; the cause is chained.
    except Exception as error:
        call = ", ".join(f"{name}={value}" for name, value in accepted.items())
        raise ConfigError(
            f"--model {reference}: the call with ({call}) failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--model {reference} returned {type(model).__name__}, but a torch.nn.Module is needed")
    return model


def _find_function(reference: str) -> Callable[..., Any]:
    module_name, _, function_name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise ConfigError(f"--model {reference}: a network of your own is given as package.module:function")
    module = _import_module(reference, module_name)
    function = getattr(module, function_name, None)
    if function is None:
        raise ConfigError(f"--model {reference}: {module.__file__ or module_name} has no {function_name!r}")
    if not callable(function):
        raise ConfigError(
            f"--model {reference}: {function_name!r} is {type(function).__name__}, "
            "but a function or class that makes the network is needed"
        )
    found: Callable[..., Any] = function
    return found


def _import_module(reference: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise ConfigError(
                f"--model {reference}: there is no module {missing!r} in the current directory ({os.getcwd()}) "
                "nor among the installed packages; start from the directory that holds it"
            ) from error
        raise _import_failed(reference, module_name, error) from error
    # A module runs the user's code when it is imported, which may raise anything; the cause is chained.
    except Exception as error:
        raise _import_failed(reference, module_name, error) from error


def _import_failed(reference: str, module_name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"--model {reference}: the import of {module_name} failed: {type(error).__name__}: {error}; "
        f"try python -c 'import {module_name}'"
    )


def _accepted(function: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return keywords
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return keywords
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {parameter.name for parameter in parameters if parameter.kind in by_name}
    return {name: value for name, value in keywords.items() if name in names}
