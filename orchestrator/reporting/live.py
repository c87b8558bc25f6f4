"""Showing a run on a terminal: a line that moves, and above it what stays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from orchestrator.reporting.display import Progress
from orchestrator.reporting.lines import start_rows, table_header, table_line
from orchestrator.reporting.standing import Event, Standing
from orchestrator.reporting.text import duration, loss, percent, rate, say, say_rows

_REFRESHES_PER_S = 8
_SHORTEST_BAR, _LONGEST_BAR = 8, 24
_GAP = 2


class LiveProgress(Progress):
    """A terminal: a spinner while something is waited for, a line while it trains, a table of the epochs above."""

    def __init__(self, out: Console, err: Console) -> None:
        super().__init__(out, err)
        self._live: Live | None = None
        self._line: _WaitingLine | _TrainingLine | None = None
        self._has_header = False

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if not isinstance(self._line, _WaitingLine) or self._line.text != text:
            self._show(_WaitingLine(text))
        if isinstance(self._line, _WaitingLine):
            self._line.done, self._line.total = done, total

    def handle(self, event: Event, standing: Standing) -> None:
        super().handle(event, standing)
        kind = event["event"]
        if kind == "start":
            say_rows(self.out, start_rows(event))
            self._has_header = False
            self.phase("waiting for the first step")
        elif kind in ("step", "heartbeat") and not isinstance(self._line, _TrainingLine):
            self._show(_TrainingLine(standing))
        elif kind == "epoch":
            self._epoch(event, standing)

    def _epoch(self, event: Event, standing: Standing) -> None:
        if not self._has_header:
            self.out.print()
            say(self.out, table_header(self.out.width))
            self._has_header = True
        say(self.out, table_line(event, standing.epochs, standing.epoch_s, self.out.width))

    def note(self, message: str, *, warning: bool = True) -> None:
        if warning and self.err.is_terminal:
            # Through the console that owns the moving line: written past it, the two would mix.
            say(self.out, Text.assemble(("warning: ", "yellow"), message))
        else:
            super().note(message, warning=warning)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = self._line = None

    def _show(self, line: _WaitingLine | _TrainingLine) -> None:
        self._line = line
        if self._live is None:
            self._live = Live(line, console=self.out, transient=True, refresh_per_second=_REFRESHES_PER_S)
            self._live.start()
        else:
            self._live.update(line)


class _WaitingLine:
    """`⠋ preparing the dataset  1,200/60,000  0:07`"""

    def __init__(self, text: str) -> None:
        self.text = text
        self.done: int | None = None
        self.total: int | None = None
        self._since = time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        parts = [f"{_spin(console, options)} {self.text}"]
        if self.done is not None:
            parts.append(f"{self.done:,}" + (f"/{self.total:,}" if self.total else ""))
        waited = time.monotonic() - self._since
        if waited >= 1:
            parts.append(duration(waited))
        line = Text((" " * _GAP).join(parts), no_wrap=True, overflow="ellipsis", style="dim")
        line.truncate(options.max_width, overflow="ellipsis")
        yield line


class _TrainingLine:
    """`⠋ epoch 2/10  ━━━━────  step 31/230  loss 0.4120 ...`: as much of it as the terminal is wide."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        spinner = _spin(console, options)
        fields = _fields(self._standing)
        free = options.max_width - len(spinner) - 1
        shown = fit(fields, free)
        left = free - _width(shown) - _GAP
        line = Text(f"{spinner} ", no_wrap=True, style="cyan")
        if left >= _SHORTEST_BAR:
            shown.insert(1, _bar(self._standing.progress, min(left, _LONGEST_BAR), options.ascii_only))
        line.append_text(Text(" " * _GAP).join(shown))
        line.truncate(options.max_width)
        yield line


def _spin(console: Console, options: ConsoleOptions) -> str:
    spinner = Spinner("line" if options.ascii_only else "dots")
    return spinner.frames[int(console.get_time() * 1000 / spinner.interval) % len(spinner.frames)]


_Field = tuple[int, Text]


def _fields(standing: Standing) -> list[_Field]:
    """The parts of the line in the order of reading, each with a rank: on a narrow terminal the highest go first."""
    metrics, epoch, eta = standing.step_metrics, standing.last_epoch, standing.eta_s()
    fields: list[_Field] = [
        (0, Text(f"epoch {standing.epoch}/{standing.epochs}", style="bold not dim default")),
        (1, Text(f"step {standing.step}/{standing.total_steps}", style="default")),
    ]
    if standing.evaluating:
        fields.append((2, Text("validating", style="yellow")))
    if metrics:
        fields.append((3, _named("loss", loss(metrics.get("train/loss")))))
        fields.append((5, _named("acc", percent(metrics.get("train/accuracy"), 1))))
    if epoch:
        fields.append((6, _named("val acc", percent(epoch.get("validation/accuracy"), 1))))
    if metrics:
        fields.append((7, Text(f"{rate(metrics.get('perf/images_per_second'))} images/s", style="default")))
    fields.append((8, _named("elapsed", duration(standing.elapsed_s()))))
    if eta is not None:
        fields.append((4, _named("left", duration(eta))))
    return fields


def _named(name: str, value: str) -> Text:
    return Text.assemble((f"{name} ", "dim default"), (value, "default"))


def fit(fields: list[_Field], width: int) -> list[Text]:
    """As many fields as go into `width` columns; the ones with the highest rank are left out first."""
    kept = list(fields)
    while len(kept) > 1 and _width([text for _, text in kept]) > width:
        kept.remove(max(kept, key=lambda field: field[0]))
    return [text for _, text in kept]


def _width(parts: list[Text]) -> int:
    return sum(part.cell_len for part in parts) + _GAP * (len(parts) - 1)


def _bar(part: float, width: int, ascii_only: bool) -> Text:
    full: tuple[Literal["━"], Literal["─"]] | tuple[str, str] = ("#", "-") if ascii_only else ("━", "─")
    done = int(part * width)
    return Text.assemble((full[0] * done, "cyan"), (full[1] * (width - done), "dim default"))
