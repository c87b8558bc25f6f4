from __future__ import annotations

from pathlib import Path

import pytest
from rich.text import Text

from orchestrator.reporting.live import LiveProgress, _TrainingLine, _WaitingLine, fit
from orchestrator.reporting.standing import Standing
from tests.reporting.fake import Clock, console, ending, events, start_event, step_event


def render(line: object, width: int) -> str:
    out, shown = console(terminal=True, width=width)
    out.print(line)
    return shown.getvalue().rstrip("\n")


def midway() -> Standing:
    clock = Clock()
    standing = Standing(clock)
    for event in events(last_step=6):
        clock.now += 1
        standing.update(event)
    return standing


def test_what_stays_on_the_terminal(tmp_path: Path) -> None:
    out, shown = console(terminal=True, width=80)
    progress, standing = LiveProgress(out, out), Standing(Clock())
    progress.phase("starting Ray")
    for event in events():
        standing.update(event)
        progress.handle(event, standing)
    progress.handle({"event": "note", "message": "a [b] c"}, standing)
    progress.finish(ending(tmp_path))
    text = shown.getvalue()
    assert text.count("  epoch  train loss     acc  val loss     acc  images/s     time") == 1
    assert "    1/2      0.5000   88.0%    0.6000   84.0%    11,111     0:00 *\n" in text
    assert "warning: a [b] c\n" in text
    assert "best       validation accuracy 97.21% in epoch 2\n" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden once and comes back"


def test_close_twice_and_before_anything() -> None:
    out, shown = console(terminal=True)
    progress = LiveProgress(out, out)
    progress.close()
    progress.phase("starting Ray")
    progress.close()
    progress.close()
    assert shown.getvalue().count("\x1b[?25l") == shown.getvalue().count("\x1b[?25h") == 1


def test_warnings_go_to_stderr_that_is_not_the_terminal() -> None:
    (out, shown), (err, warned) = console(terminal=True), console()
    LiveProgress(out, err).note("careful")
    assert (shown.getvalue(), warned.getvalue()) == ("", "warning: careful\n")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140])
def test_the_line_is_never_wider_than_the_terminal(width: int) -> None:
    line = render(_TrainingLine(midway()), width)
    assert len(line) <= width
    assert "epoch 2/2" in line
    assert "\n" not in line


def test_the_line_says_more_on_a_wide_terminal() -> None:
    standing = midway()
    assert render(_TrainingLine(standing), 61)[2:] == "epoch 2/2  step 6/8  loss 0.1667  acc 87.1%  left 0:05"
    line = render(_TrainingLine(standing), 140)
    for part in ("━", "─", "val acc 84.0%", "12,346 images/s", "elapsed 0:15"):
        assert part in line


def test_the_line_says_when_it_validates() -> None:
    standing = Standing(Clock())
    standing.update(start_event())
    standing.update(step_event(4))
    assert "validating" in render(_TrainingLine(standing), 80)


def test_waiting_shows_how_far_it_is() -> None:
    line = _WaitingLine("preparing [the] dataset")
    assert render(line, 80)[2:] == "preparing [the] dataset"
    line.done, line.total = 1200, 60000
    assert render(line, 80)[2:] == "preparing [the] dataset  1,200/60,000"
    assert len(render(line, 20)) <= 20


def test_fit_leaves_out_the_highest_rank_first() -> None:
    fields = [(0, Text("aa")), (2, Text("bb")), (1, Text("cc"))]
    shown = [" ".join(t.plain for t in fit(fields, width)) for width in (10, 9, 6, 5, 1)]
    assert shown == ["aa bb cc", "aa cc", "aa cc", "aa", "aa"]
