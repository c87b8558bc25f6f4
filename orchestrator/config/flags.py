"""The command line: flags made from the fields of `TrainConfig`, laid over files and environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

from orchestrator.config.checks import check_config
from orchestrator.config.options import GROUPS, Options, TrainConfig
from orchestrator.config.sources import Layer, build_config, environment_layer, file_layer, from_text, nearest
from orchestrator.errors import ConfigError

# At most 80 columns wide: tyro wraps the options to the terminal, but not this. Lines that are not indented it joins.
_MANUAL = """options come from, where later wins:
  1. --config FILE, several in their order
  2. the environment, such as ORCHESTRATOR_LR=0.01
  3. flags, with - or _ between words

examples:
  python -m orchestrator.train
  python -m orchestrator.train --num-workers 2 --dataset fashion-mnist
  python -m orchestrator.train --config jobs/fashion-mnist.yaml --dry-run
  python -m orchestrator.train --run-name first --resume auto

exit codes:
   0 finished        1 unexpected     2 usage         3 environment   4 data
   5 out of memory   6 not finite     7 workers lost  8 hang          9 storage
  75 stopped with a checkpoint: the same command with --resume auto goes on"""


@dataclass(frozen=True)
class CommandLine:
    """What was asked for. With `print_config` or `dry_run` nothing is started."""

    config: TrainConfig
    print_config: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Asking:
    """Asking: where options come from, and what would happen."""

    config: Annotated[
        list[str],
        tyro.conf.UseAppendAction,
        tyro.conf.arg(
            metavar="FILE",
            help="YAML file of options; may be given more than once.",
            help_behavior_hint="(default: none)",
        ),
    ] = field(default_factory=list)
    print_config: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="Print the options as a file.")] = (
        False
    )
    dry_run: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        tyro.conf.arg(help="Print options, batch, steps, resources and files; start nothing."),
    ] = False


def parse_command_line(arguments: Sequence[str], *, prog: str, description: str) -> CommandLine:
    """Parse flags over environment over files over defaults.

    Raises ConfigError for what cannot be meant; SystemExit after `--help` and for a flag without its value.
    """
    given = _given_flags(arguments)
    flags_class: Any = Annotated[_flags_class(), tyro.conf.OmitArgPrefixes]
    flags: Any = tyro.cli(
        flags_class,
        args=list(arguments),
        prog=prog,
        description=f"{description}\n\n{_MANUAL}",
    )
    values = {name: getattr(group, name) for group in vars(flags).values() for name in vars(group) if name in given}
    asking: Asking = flags.asking
    layers = [
        *(file_layer(path, TrainConfig) for path in asking.config),
        environment_layer(os.environ, TrainConfig),
        _flag_layer(values),
    ]
    config = build_config(TrainConfig, layers)
    check_config(config)
    return CommandLine(config, asking.print_config, asking.dry_run)


def _flag_layer(values: dict[str, Any]) -> Layer:
    options = {
        name: from_text(value, TrainConfig, name) if isinstance(value, str) else value
        for name, value in values.items()
        if name in TrainConfig.model_fields
    }
    return Layer(options, {name: _flag(name) for name in options})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _given_flags(arguments: Sequence[str]) -> set[str]:
    """Names of the flags that stand on the command line.

    Raises ConfigError for one that there is not, with the nearest one, and for one given twice.
    """
    known = [*TrainConfig.model_fields, *Asking.__dataclass_fields__]
    given: set[str] = set()
    for argument in arguments:
        if not argument.startswith("--") or argument in ("--help", "--"):
            continue
        written = argument.partition("=")[0]
        name = written[2:].replace("-", "_")
        if name.startswith("no_") and _is_switch(name[3:]):
            name = name[3:]
        if name not in known:
            guess = nearest(name, known)
            advice = f"Did you mean {_flag(guess)}?" if guess else "--help lists them all."
            raise ConfigError(f"There is no flag {written}. {advice}")
        if name in given and name != "config":
            raise ConfigError(f"{written} is given twice. Give it once.")
        given.add(name)
    return given


def _is_switch(name: str) -> bool:
    return name in TrainConfig.model_fields and TrainConfig.model_fields[name].annotation is bool


def _flags_class() -> Any:
    """A dataclass with one dataclass a group, which is how tyro shows groups."""
    groups: list[tuple[str, Any, Any]] = []
    for group in GROUPS:
        group_class = make_dataclass(group.__name__, [_flag_field(group, name) for name in group.model_fields])
        group_class.__doc__ = group.__doc__
        title = (group.__doc__ or "").partition(":")[0].lower().replace(" ", "_")
        groups.append((title, group_class, field(default_factory=group_class)))
    groups.append(("asking", Asking, field(default_factory=Asking)))
    return make_dataclass("Flags", groups)


def _flag_field(group: type[Options], name: str) -> tuple[str, Any, Any]:
    """Switches are tyro's; every other value goes as text to the config class, which says what is wrong with it."""
    info = group.model_fields[name]
    help_text = info.description or ""
    if info.annotation is bool:
        return name, Annotated[bool, tyro.conf.arg(help=help_text)], field(default=info.default)
    default = str(info.default)
    argument = tyro.conf.arg(
        help=help_text, metavar=_metavar(name, info.annotation), help_behavior_hint=f"(default: {default})"
    )
    return name, Annotated[str, argument], field(default=default)


_METAVARS = {
    "num_workers": "N|MIN:MAX",
    "max_time": "TIME",
    "dataset": "NAME|PATH",
    "run_name": "NAME",
    "model": "NAME",
}


def _metavar(name: str, annotation: Any) -> str:
    kinds = _kinds(annotation)
    literals = [str(value) for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if name in _METAVARS or literals:
        return _METAVARS.get(name) or "{" + ",".join(literals) + "}"
    if int in kinds:
        return "INT"
    return "NUMBER" if float in kinds else "TEXT"


def _kinds(annotation: Any) -> list[Any]:
    """The types within unions and `Annotated`."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return _kinds(get_args(annotation)[0]) if get_origin(annotation) is Annotated else [annotation]
