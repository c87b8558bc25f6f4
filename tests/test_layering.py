"""Arrows of import go down only: the loop knows no Ray, the configuration neither torch nor Ray."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent

MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "data": {"errors", "config"},
    "models": {"errors", "config"},
    "reporting": {"errors", "config"},
    "training": {"errors", "config", "data", "models"},
    "worker": {"errors", "config", "data", "training"},
    "driver": {"errors", "config", "data", "models", "reporting", "training", "worker"},
    "train": {"driver", "errors"},
}


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "orchestrator":
                names = [f"orchestrator.{a.name}" for a in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("orchestrator.")}
    return rooms


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_a_room_imports_only_what_is_below_it(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        assert imported_rooms(file) == set()
    else:
        assert imported_rooms(file) <= MAY_IMPORT[room] | {room}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("orchestrator.training.loop", ["ray"]),
        ("orchestrator.config.flags", ["ray", "torch", "numpy", "pyarrow"]),
        ("orchestrator.train", ["ray", "torch", "numpy", "pyarrow"]),
        ("orchestrator.reporting.reporter", ["ray", "torch"]),
        ("orchestrator.data.dataset", ["ray", "torch", "torchvision"]),
        ("orchestrator.driver.job", ["ray", "torch"]),
    ],
)
def test_importing_a_module_does_not_load_what_it_must_not_know(module: str, absent: list[str]) -> None:
    program = f"import sys, {module}; print(sorted(set({absent}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
