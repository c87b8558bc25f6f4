from __future__ import annotations

import pytest

from orchestrator.reporting import text
from orchestrator.reporting.text import Row, say_rows
from tests.reporting.fake import console


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0:00"), (-3, "0:00"), (59.6, "1:00"), (751, "12:31"), (3723, "1:02:03"), (176523, "2d 1:02:03")],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0.0000"),
        (0.41204, "0.4120"),
        (1.5e-5, "1.5e-05"),
        (123456.0, "1.23e+05"),
        (float("nan"), "nan"),
    ],
)
def test_loss(value: float | None, shown: str) -> None:
    assert text.loss(value) == shown


def test_numbers() -> None:
    assert [text.percent(None), text.percent(0.87149), text.percent(1.0, 1)] == ["-", "87.15%", "100.0%"]
    assert [text.rate(None), text.rate(0.123), text.rate(9.87), text.rate(12345.6)] == ["-", "0.12", "9.9", "12,346"]
    assert [text.count(1, "class", "classes"), text.count(1200, "step")] == ["1 class", "1,200 steps"]


def test_prose_is_wrapped_on_a_terminal_and_a_path_is_not() -> None:
    rows = [Row("final", "one two three four five"), Row("folder", "/a path/that is/long enough", whole=True)]
    out, shown = console(terminal=True, width=25)
    say_rows(out, rows)
    lines = shown.getvalue().splitlines()
    assert [line.rstrip() for line in lines[:2]] == ["final      one two three", "           four five"]
    assert lines[2] == "folder     /a path/that is/long enough"
    out, shown = console(width=25)
    say_rows(out, rows)
    assert shown.getvalue().splitlines()[0] == "final      one two three four five"
