"""Showing a run as lines of a log, as little as its end, or as JSON."""

from __future__ import annotations

from rich.console import Console

from orchestrator.reporting.closing import Ending, last_line, print_failure
from orchestrator.reporting.display import Progress
from orchestrator.reporting.lines import epoch_line, start_rows, step_line
from orchestrator.reporting.standing import Event, Standing
from orchestrator.reporting.strict_json import to_json
from orchestrator.reporting.text import say, say_rows, timestamp

_STEP_LINES_S = 5.0


class PlainProgress(Progress):
    """Lines for a file or a pipe: every epoch, and a step at most every five seconds."""

    def __init__(self, out: Console, err: Console) -> None:
        super().__init__(out, err)
        self._phase = ""
        self._said_at: float | None = None

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if text != self._phase:
            say(self.out, text)
        self._phase = text

    def handle(self, event: Event, standing: Standing) -> None:
        super().handle(event, standing)
        kind = event["event"]
        if kind == "start":
            say_rows(self.out, start_rows(event))
        elif kind == "step":
            self._step(standing)
        elif kind == "epoch":
            say(self.out, epoch_line(event, standing.epochs, standing.epoch_s))

    def _step(self, standing: Standing) -> None:
        now = standing.clock()
        if self._said_at is None or now - self._said_at >= _STEP_LINES_S:
            self._said_at = now
            say(self.out, step_line(standing))


class QuietProgress(Progress):
    """Warnings, errors and the last line."""

    def note(self, message: str, *, warning: bool = True) -> None:
        if warning:
            super().note(message)

    def finish(self, ending: Ending) -> None:
        if ending.error is not None:
            print_failure(ending.error, self.err)
        say(self.out, last_line(ending))


class JsonProgress(Progress):
    """One JSON object a line: the events with their time, but for heartbeats, a "phase" before, an "end" behind.

    With `quiet`, only notes and the end. NaN and Infinity are null.
    """

    def __init__(self, out: Console, err: Console, *, quiet: bool = False) -> None:
        super().__init__(out, err)
        self._quiet = quiet
        self._phase = ""

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if text != self._phase and not self._quiet:
            self._write({"event": "phase", "message": text})
        self._phase = text

    def handle(self, event: Event, standing: Standing) -> None:
        if event["event"] == "note" or (event["event"] != "heartbeat" and not self._quiet):
            self._write(event)

    def note(self, message: str, *, warning: bool = True) -> None:
        self._write({"event": "note", "level": "warning" if warning else "info", "message": message})

    def finish(self, ending: Ending) -> None:
        self._write(
            {
                "event": "end",
                "state": ending.state,
                "exit_code": ending.exit_code,
                "run_name": ending.run_name,
                "folder": ending.location,
                "error": ending.error,
                "summary": ending.summary,
            }
        )

    def _write(self, event: Event) -> None:
        self.out.out(to_json({"time": timestamp(), **event}), highlight=False)
