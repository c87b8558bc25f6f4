"""The two consoles of a command: what was asked for goes to stdout, warnings and errors to stderr."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console


class PatientConsole(Console):
    """A console that goes quiet when its reader leaves or its file does not take more.

    `| head`, a `tee` that was killed or a full disk under a log must not end hours of training.
    """

    def print(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().print(*args, **kwargs)
        except OSError:
            self.on_broken_pipe()

    def out(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().out(*args, **kwargs)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        stream = sys.stderr if self.stderr else sys.stdout
        # What is still buffered would raise again when the interpreter closes the stream.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


def open_consoles() -> tuple[Console, Console]:
    """Consoles on stdout and stderr."""
    return PatientConsole(highlight=False), PatientConsole(stderr=True, highlight=False)
