"""What every form of showing a run has in common."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from orchestrator.reporting.closing import Ending, print_ending
from orchestrator.reporting.standing import Event, Standing
from orchestrator.reporting.text import say


class Progress:
    """Shows a run. Progress and tables go to `out`, warnings and errors to `err`.

    `phase` may be called before there is a run. `handle` gets each event after `standing` has taken it in. After
    `finish`, or after `close` for an end without one, nothing is shown any more.
    """

    def __init__(self, out: Console, err: Console) -> None:
        self.out = out
        self.err = err

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Say what is being waited for; with `done` of `total`, how far it is. May be called often."""

    def handle(self, event: Event, standing: Standing) -> None:
        """Show one event. A note is a warning unless its `level` is "info"."""
        if event["event"] == "note":
            self.note(event["message"], warning=event.get("level") != "info")

    def note(self, message: str, *, warning: bool = True) -> None:
        """Show a sentence for the user."""
        if warning:
            say(self.err, Text.assemble(("warning: ", "yellow"), message))
        else:
            say(self.out, message)

    def finish(self, ending: Ending) -> None:
        """Show the end of the run."""
        self.close()
        print_ending(ending, self.out, self.err)

    def close(self) -> None:
        """Leave the terminal as it was. May be called more than once."""
