"""Reading a YAML file of options by the rules of YAML 1.2, without the surprises of PyYAML's 1.1.

Only `true` and `false` are booleans (`no`, `off` and `yes` are text), `1e-3` is a number, a leading zero is refused, a
key that stands twice is refused, and so is every tag (`!!int`, `!!python/...`). Nothing in a file can run code.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from orchestrator.errors import ConfigError

_RESOLVERS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if tag := getattr(event, "tag", None):
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise yaml.MarkedYAMLError(
                problem=f"the tag {shown} is refused: no option needs one, and quotes make a value text",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, Node] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _at(key_node, f"the key {key!r} is not a name")
            if key in seen:
                raise _at(key_node, f"{key} stands here again, after line {seen[key].start_mark.line + 1}")
            seen[key] = key_node
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


def _at(node: Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def read_yaml(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The options of a file and the line of each. An empty file has none.

    Raises ConfigError, naming file and line, for a file that cannot be read or does not hold `key: value` lines.
    """
    text = _read_text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None or (isinstance(node, ScalarNode) and node.value == ""):
            return {}, {}
        if not isinstance(node, MappingNode):
            raise _at(node, "the file is a list or a single value; write one `option: value` a line")
        for _, value in node.value:
            _refuse_leading_zero(value)
        values = loader.construct_document(node)
        lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}, column {mark.column + 1}" if mark else path
        raise ConfigError(f"{place}: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {str(error).splitlines()[0]}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} holds a number too long to read, or brackets too deep: {error}.") from error
    return values, lines


def _read_text(path: str) -> str:
    try:
        # utf-8-sig: editors on Windows put a byte order mark first.
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: there is no such file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path} is not a text file in UTF-8: byte {error.start} cannot be read.") from error
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}.") from error


def _refuse_leading_zero(node: Node) -> None:
    if isinstance(node, ScalarNode) and node.style is None and _LEADING_ZERO.fullmatch(node.value):
        raise _at(
            node,
            f"{node.value} begins with a zero, which YAML 1.1 reads as octal; write {node.value.lstrip('+-0') or 0}",
        )
