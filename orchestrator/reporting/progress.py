"""Choosing the form in which a run is shown."""

from __future__ import annotations

from typing import Literal

from rich.console import Console

from orchestrator.reporting.display import Progress
from orchestrator.reporting.live import LiveProgress
from orchestrator.reporting.plain import JsonProgress, PlainProgress, QuietProgress


def build_progress(out: Console, err: Console, *, log_format: Literal["text", "json"], quiet: bool) -> Progress:
    """The form for these consoles and flags: a moving line only where `out` is a terminal that can move one."""
    if log_format == "json":
        return JsonProgress(out, err, quiet=quiet)
    if quiet:
        return QuietProgress(out, err)
    # isatty as well: FORCE_COLOR makes a file a terminal for rich.
    if out.is_terminal and not out.is_dumb_terminal and out.file.isatty():
        return LiveProgress(out, err)
    return PlainProgress(out, err)
