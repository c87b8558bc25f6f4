"""The end of a run: how it went, where its files are, what to type next; after a failure, what happened and what to do."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from orchestrator.reporting.names import BEST_WEIGHTS, CONFIG, METRICS, TENSORBOARD, TRACEBACK, WEIGHTS
from orchestrator.reporting.text import Row, count, duration, loss, percent, rate, say_rows

State = Literal["finished", "stopped", "failed"]
_STYLES = {"finished": "bold green", "stopped": "bold yellow", "failed": "bold red"}
_PROGRAM = ("python", "-m", "orchestrator.train")
_SHOWN_FILES = (("weights", WEIGHTS), ("", BEST_WEIGHTS), ("metrics", METRICS), ("traceback", TRACEBACK))
_ONCE_ONLY = ("--resume", "--run-name")


@dataclass(frozen=True)
class Ending:
    """How a run ended. `location` is its folder for the user, `path` where its files are on this machine.

    `error` is that of status.json: class, message, rank, node, epoch, step, advice, retryable. `arguments` are those
    of the command line, without the program.
    """

    state: State
    exit_code: int
    run_name: str
    location: str
    path: Path
    summary: Mapping[str, Any]
    error: Mapping[str, Any] | None = None
    arguments: Sequence[str] = field(default=())


def print_ending(ending: Ending, out: Console, err: Console) -> None:
    """The closing table on `out`, and before it the failure, if it is one, on `err`."""
    out.print()
    if ending.error is not None:
        print_failure(ending.error, err)
    say_rows(out, closing_rows(ending))


def print_failure(error: Mapping[str, Any], err: Console) -> None:
    """What failed, where, and what to do, as one paragraph. Keys that are missing or None are left out."""
    place = failure_place(error)
    text = Text("error: ", style="bold red")
    text.append(str(error["message"]).strip(), style="not bold default")
    text.append(f" ({error['class']}{', ' if place else ''}{place})", style="dim not bold default")
    if error.get("advice"):
        text.append(f" {error['advice']}", style="not bold default")
    # Words are kept whole on a terminal; in a file the paragraph is one line that can be searched for.
    err.print(text, soft_wrap=not err.is_terminal)


def failure_place(error: Mapping[str, Any]) -> str:
    """`rank 1 on node-b, epoch 3, after step 71`, or what is known of it."""
    rank, node = error.get("rank"), error.get("node")
    parts = [
        " ".join([*([] if rank is None else [f"rank {rank}"]), *([] if node is None else [f"on {node}"])]),
        f"epoch {error['epoch']}" if error.get("epoch") else "",
        f"after step {error['step']}" if error.get("step") else "",
    ]
    return ", ".join(part for part in parts if part)


def closing_rows(ending: Ending) -> list[Row]:
    """The table, one line a row; paths and commands are whole and quoted for a shell."""
    summary = ending.summary
    course = Row(ending.state, _course(ending), heading_style=_STYLES[ending.state])
    commands = [Row(name, command, "cyan", whole=True) for name, command in next_commands(ending)]
    return [course, *_results(summary), *_files(ending), *commands]


def last_line(ending: Ending) -> str:
    """The one line of a quiet run."""
    best = ending.summary.get("best_validation_accuracy")
    accuracy = "" if best is None else f"best validation accuracy {percent(best)}, "
    return f"{ending.state}: {accuracy}{_course(ending)}; {ending.location}"


def _course(ending: Ending) -> str:
    summary = ending.summary
    epochs, steps = count(summary.get("epochs") or 0, "epoch"), count(summary.get("steps") or 0, "step")
    text = f"{epochs}, {steps} in {duration(summary.get('total_s'))}"
    first = summary.get("time_to_first_step_s")
    return text if first is None else f"{text}, the first step after {first:.1f} s"


def _results(summary: Mapping[str, Any]) -> list[Row]:
    best, epoch = summary.get("best_validation_accuracy"), summary.get("best_epoch")
    rows = []
    if best is not None:
        rows.append(Row("best", f"validation accuracy {percent(best)} in epoch {epoch}", style="bold"))
    if summary.get("validation_accuracy") is not None:
        rows.append(
            Row(
                "final",
                f"validation accuracy {percent(summary['validation_accuracy'])}, loss {loss(summary.get('validation_loss'))}; "
                f"train loss {loss(summary.get('train_loss'))}",
            )
        )
    if summary.get("images_per_second") is not None:
        rows.append(Row("speed", _speed(summary)))
    return rows


def _speed(summary: Mapping[str, Any]) -> str:
    parts = [f"{rate(summary['images_per_second'])} images/s"]
    workers, memory = summary.get("num_workers"), summary.get("peak_memory_mib")
    if isinstance(workers, int):
        parts.append(count(workers, "worker"))
    elif workers:
        parts.append(f"{' then '.join(map(str, workers))} workers")
    if summary.get("precision"):
        parts.append(summary["precision"])
    if memory is not None:
        parts.append(f"at most {memory:,.0f} MiB in a worker")
    return ", ".join(parts)


def _files(ending: Ending) -> list[Row]:
    rows = [Row("folder", ending.location, whole=True)]
    for heading, name in _SHOWN_FILES:
        if (ending.path / name).is_file():
            rows.append(Row(heading, str(ending.path / name), whole=True))
    return rows


def next_commands(ending: Ending) -> list[tuple[str, str]]:
    """What may be typed next, with a heading each."""
    commands = []
    # It is no dependency: a command that is not there is no help.
    if (ending.path / TENSORBOARD).is_dir() and which("tensorboard"):
        commands.append(("look", shlex.join(["tensorboard", "--logdir", str(ending.path / TENSORBOARD)])))
    if ending.state == "finished":
        repeat = ["--config", str(ending.path / CONFIG), "--run-name", f"{ending.run_name}-again"]
        commands.append(("repeat", shlex.join([*_program(), *repeat])))
    elif ending.state == "stopped" or (ending.error or {}).get("retryable"):
        commands.append(("go on", resume_command(ending.arguments, ending.run_name)))
    return commands


def _program() -> list[str]:
    """How this command was typed: `.venv/bin/python -m orchestrator.train`."""
    typed = sys.orig_argv[:3]
    return typed if tuple(typed[1:]) == _PROGRAM[1:] else list(_PROGRAM)


def resume_command(arguments: Sequence[str], run_name: str) -> str:
    """The same command, going on with the run of that name."""
    kept, skip = [], False
    for argument in arguments:
        name, has_value, _ = argument.partition("=")
        if skip:
            skip = False
        elif name.replace("_", "-") in _ONCE_ONLY:
            skip = not has_value
        else:
            kept.append(argument)
    return shlex.join([*_program(), *kept, "--resume", "auto", "--run-name", run_name])
