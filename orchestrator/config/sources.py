"""From files, environment and flags to one validated config; and from a config back to a file.

Later layers win: the defaults, each `--config` file in its order, the environment (`ORCHESTRATOR_BATCH_SIZE=128`), the
flags. Numbers may be quoted. Every error names the option, its value and where it came from.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.config.options import GROUPS, Options, TrainConfig
from orchestrator.config.yaml_file import read_yaml
from orchestrator.errors import ConfigError

ENVIRONMENT_PREFIX = "ORCHESTRATOR_"
_SYNONYMS = {
    "learning_rate": "lr", "epoch": "epochs", "workers": "num_workers", "gpu": "use_gpu", "gpus": "use_gpu",
    "batch": "batch_size", "bs": "batch_size", "name": "run_name", "output": "output_dir", "data": "dataset",
    "grad_accum": "accumulation_steps", "gradient_accumulation_steps": "accumulation_steps", "amp": "precision",
    "clip": "max_grad_norm", "wd": "weight_decay",
}  # fmt: skip

ConfigT = TypeVar("ConfigT", bound=BaseModel)


@dataclass(frozen=True)
class Layer:
    """Options from one place, and for each how the user would find it there."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The option that a wrong name may have meant."""
    plain = name.lower().replace("-", "_")
    if plain in known:
        return plain
    if _SYNONYMS.get(plain) in known:
        return _SYNONYMS[plain]
    close = difflib.get_close_matches(plain, [*known, *_SYNONYMS], n=1, cutoff=0.6)
    return _SYNONYMS.get(close[0], close[0]) if close else None


def file_layer(path: str, config_class: type[BaseModel]) -> Layer:
    """The options of a YAML file.

    Raises ConfigError for what is no option, with the nearest one that is.
    """
    values, lines = read_yaml(path)
    known = list(config_class.model_fields)
    problems = [
        f"{path}:{lines[name]}: {_unknown_key(name, value, known)}"
        for name, value in values.items()
        if name not in known
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return Layer(values, {name: f"{path}:{line}" for name, line in lines.items()})


def _unknown_key(name: str, value: Any, known: Sequence[str]) -> str:
    if isinstance(value, dict):
        inside = [key for key in value if key in known]
        advice = f" Write {', '.join(inside)} at the left margin." if inside else ""
        return f"there is no option {name}, and options are not nested.{advice}"
    guess = nearest(name, known)
    return f"there is no option {name}." + (f" Did you mean {guess}?" if guess else " See --help for all of them.")


def environment_layer(environment: Mapping[str, str], config_class: type[BaseModel]) -> Layer:
    """The options of `ORCHESTRATOR_*` variables.

    Raises ConfigError for those that are no option: a typo would otherwise train with defaults.
    """
    known = list(config_class.model_fields)
    found = {n: n.removeprefix(ENVIRONMENT_PREFIX).lower() for n in environment if n.startswith(ENVIRONMENT_PREFIX)}
    problems = [_unknown_variable(variable, name, known) for variable, name in found.items() if name not in known]
    if problems:
        raise ConfigError("\n".join(problems))
    values = {name: from_text(environment[variable], config_class, name) for variable, name in found.items()}
    return Layer(values, {name: f"environment {variable}" for variable, name in found.items()})


def _unknown_variable(variable: str, name: str, known: Sequence[str]) -> str:
    guess = nearest(name, known)
    advice = f"Did you mean {ENVIRONMENT_PREFIX}{guess.upper()}?" if guess else "Unset it."
    return f"The environment variable {variable} is no option. {advice}"


def from_text(text: str, config_class: type[BaseModel], name: str) -> str | None:
    """What a flag or a variable gives to an option: `none` says what YAML says with null, where the option can be that.

    Elsewhere it is text like any other: `none` is a choice of `augment`.
    """
    can_be_none = type(None) in get_args(config_class.model_fields[name].annotation)
    return None if can_be_none and text.lower() == "none" else text


def build_config(config_class: type[ConfigT], layers: Sequence[Layer]) -> ConfigT:
    """Lay the layers over the defaults.

    Raises ConfigError with one line for each value that cannot be meant.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        values |= layer.values
        origins |= {name: layer.origins.get(name, "") for name in layer.values}
    try:
        return config_class(**values)
    except ValidationError as error:
        lines = dict.fromkeys(_describe(detail, origins) for detail in error.errors())
        raise ConfigError("\n".join(lines)) from None


_LIMITS = {
    "greater_than": "more than {gt}", "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}", "less_than_equal": "{le} or less",
    "int_parsing": "a whole number", "int_type": "a whole number", "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of at most 64 bits",
    "float_parsing": "a number", "float_type": "a number", "finite_number": "a finite number",
    "bool_parsing": "true or false", "bool_type": "true or false", "string_type": "text",
    "string_too_short": "not empty text", "literal_error": "one of {expected}",
}  # fmt: skip


def _describe(detail: ErrorDetails, origins: Mapping[str, str]) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else "options"
    context = {k: f"{v:g}" if isinstance(v, float) else v for k, v in detail.get("ctx", {}).items()}
    limit = _LIMITS.get(detail["type"])
    allowed = f"it must be {limit.format(**context)}" if limit else detail["msg"].removeprefix("Value error, ")
    value = detail["input"]
    if value is None:
        allowed = f"{allowed}; leave it out for its default"
    shown = "null" if value is None else json.dumps(value) if isinstance(value, bool) else repr(value)
    origin = origins.get(name, "")
    subject = origin if origin.startswith("--") else f"{origin}: {name}".removeprefix(": ")
    return f"{subject} is {shown}, but {allowed}."


def config_to_yaml(config: TrainConfig) -> str:
    """A file that `--config` reads back to an equal config, in the groups of `--help`."""
    lines = []
    for group in GROUPS:
        lines.append(f"# {group_title(group)}")
        lines += [f"{name}: {_scalar(getattr(config, name))}" for name in group.model_fields]
        lines.append("")
    return "\n".join(lines)


def group_title(group: type[Options]) -> str:
    return (group.__doc__ or "").strip().splitlines()[0]


def _scalar(value: Any) -> str:
    # In double quotes nothing is left to a resolver, and what cannot be printed is escaped.
    if isinstance(value, str):
        return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=float("inf")).rstrip("\n")
    return json.dumps(value) if isinstance(value, bool) or value is None else repr(value)


def json_schema() -> dict[str, Any]:
    """JSON schema of a config file."""
    return TrainConfig.model_json_schema()
