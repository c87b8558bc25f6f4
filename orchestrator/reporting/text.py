"""Numbers and rows as a person reads them. A value that is not known is shown as a dash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

UNKNOWN = "-"
_HEADING_WIDTH = 11


def timestamp() -> str:
    """Now, in UTC as ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def duration(seconds: float | None) -> str:
    """`0:07`, `12:31`, `1:02:03`, `2d 1:02:03`."""
    if seconds is None:
        return UNKNOWN
    minutes, second = divmod(round(max(seconds, 0.0)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if not hours:
        return f"{minute}:{second:02d}"
    return (f"{days}d " if days else "") + f"{hour}:{minute:02d}:{second:02d}"


def percent(fraction: float | None, digits: int = 2) -> str:
    return UNKNOWN if fraction is None else f"{100 * fraction:.{digits}f}%"


def loss(value: float | None) -> str:
    """Four decimals where they say something."""
    if value is None:
        return UNKNOWN
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return UNKNOWN
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 worker`, `2 workers`, `1,200 steps`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@dataclass(frozen=True)
class Row:
    """One row of a table of headings and values. `whole`: a path or a command, which no line break may cut."""

    heading: str
    value: str
    style: str = "not dim"
    whole: bool = False
    heading_style: str = "dim"


def say(console: Console, text: Text | str) -> None:
    """Print one line whole, whatever the width: it can be searched for, and a path or a command in it copied."""
    console.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)


def say_rows(console: Console, rows: Iterable[Row]) -> None:
    """Print rows; on a terminal the values that are prose are wrapped between words."""
    for row in rows:
        value = Text(row.value, style=row.style)
        width = console.width - _HEADING_WIDTH
        lines = value.wrap(console, width) if console.is_terminal and not row.whole and width > 0 else [value]
        for number, line in enumerate(lines):
            heading = "" if number else row.heading
            say(console, Text.assemble((f"{heading:<{_HEADING_WIDTH}}", row.heading_style), line))
