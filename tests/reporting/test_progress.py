from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.reporting.display import Progress
from orchestrator.reporting.live import LiveProgress
from orchestrator.reporting.plain import JsonProgress, PlainProgress, QuietProgress
from orchestrator.reporting.progress import build_progress
from orchestrator.reporting.standing import Standing
from tests.reporting.fake import Clock, console, ending, epoch_event, events, start_event, step_event

NOTE = {"event": "note", "message": "2 of 10 images skipped: a/[b].jpg (truncated)"}
ERROR = {"class": "NonFiniteError", "message": "loss is nan [1]", "rank": 1, "node": None, "retryable": False}


def play(progress: Progress, *, clock: Clock | None = None) -> None:
    clock = clock or Clock()
    standing = Standing(clock)
    progress.phase("starting Ray")
    for event in [*events(), NOTE]:
        clock.now += 1
        standing.update(event)
        progress.handle(event, standing)


def test_the_form_follows_the_flags_and_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, err = console()
    coloured, _ = console(terminal=True)
    assert type(build_progress(out, err, log_format="text", quiet=False)) is PlainProgress
    assert type(build_progress(coloured, err, log_format="text", quiet=False)) is PlainProgress
    assert type(build_progress(out, err, log_format="text", quiet=True)) is QuietProgress
    assert type(build_progress(out, err, log_format="json", quiet=True)) is JsonProgress
    main, side = pty.openpty()
    with os.fdopen(side, "w") as terminal:
        assert type(build_progress(Console(file=terminal), err, log_format="text", quiet=False)) is LiveProgress
        monkeypatch.setenv("TERM", "dumb")
        assert type(build_progress(Console(file=terminal), err, log_format="text", quiet=False)) is PlainProgress
    os.close(main)


def test_plain_lines(tmp_path: Path) -> None:
    (out, shown), (err, warned) = console(width=40), console()
    progress = PlainProgress(out, err)
    play(progress)
    progress.finish(ending(tmp_path))
    lines = shown.getvalue().splitlines()
    assert lines[:7] == [
        "starting Ray",
        "batch      global batch 64 = 2 micro-batches of 32 (2 workers x 1 accumulation step)",
        "data       1,438 training and 359 validation images, 10 classes",
        "model      cnn, 102,634 parameters",
        "precision  fp32: no [bf16] kernels",
        "workers    1 on node-0 (cpu), 1 on node-1 (cpu)",
        "steps      8 optimizer steps: 2 epochs of 4",
    ]
    assert lines[7] == ("epoch 1/2  step 1/8  train loss 1.0000  accuracy 87.10%  12,346 images/s  elapsed 0:03")
    ends = [line for line in lines if "done" in line]
    assert ends[0] == (
        "epoch 1/2 done  train loss 0.5000  accuracy 88.00%  validation loss 0.6000  accuracy 84.00%  "
        "11,111 images/s  0:09  * best so far"
    )
    assert len(ends) == 2
    assert warned.getvalue() == "warning: 2 of 10 images skipped: a/[b].jpg (truncated)\n"


def test_plain_steps_are_at_most_one_in_five_seconds() -> None:
    (out, shown), clock = console(), Clock()
    progress, standing = PlainProgress(out, out), Standing(clock)
    standing.update(start_event(total_steps=20, steps_per_epoch=20))
    for step in range(1, 13):
        standing.update(step_event(step))
        progress.handle(step_event(step), standing)
        clock.now += 1
    assert [line.split("  ")[1] for line in shown.getvalue().splitlines()] == ["step 1/20", "step 6/20", "step 11/20"]


def test_plain_phases_are_said_once() -> None:
    out, shown = console()
    progress = PlainProgress(out, out)
    for done in range(3):
        progress.phase("preparing the dataset", done, 3)
    assert shown.getvalue() == "preparing the dataset\n"


def test_quiet_shows_warnings_and_the_last_line(tmp_path: Path) -> None:
    (out, shown), (err, warned) = console(), console()
    progress = QuietProgress(out, err)
    play(progress)
    progress.note("for information", warning=False)
    progress.finish(ending(tmp_path / "r", state="failed", exit_code=6, error=ERROR))
    assert shown.getvalue().startswith("failed: best validation accuracy 97.21%, 2 epochs, 8 steps in 1:01:11")
    assert shown.getvalue().endswith(f"; {tmp_path}/r\n")
    assert warned.getvalue().splitlines() == [
        "warning: 2 of 10 images skipped: a/[b].jpg (truncated)",
        "error: loss is nan [1] (NonFiniteError, rank 1)",
    ]


def test_json_is_one_object_a_line(tmp_path: Path) -> None:
    (out, shown), (err, warned) = console(width=20), console()
    progress = JsonProgress(out, err)
    play(progress)
    nan = step_event(8, **{"train/loss": float("nan")})
    progress.handle(nan, Standing(Clock()))
    progress.finish(ending(tmp_path, state="failed", exit_code=6, error=ERROR))
    lines = [json.loads(line) for line in shown.getvalue().splitlines()]
    kinds = [line["event"] for line in lines]
    epoch = [*["step"] * 4, "epoch", "checkpoint"]
    assert kinds == ["phase", "start", *epoch, *epoch, "note", "step", "end"]
    assert all("time" in line for line in lines)
    assert lines[-2]["train/loss"] is None
    assert {k: lines[-1][k] for k in ("state", "exit_code", "error")} == {
        "state": "failed",
        "exit_code": 6,
        "error": ERROR,
    }
    assert lines[-1]["summary"]["steps"] == 8
    assert warned.getvalue() == ""


def test_json_quiet_is_notes_and_the_end(tmp_path: Path) -> None:
    out, shown = console()
    progress = JsonProgress(out, out, quiet=True)
    play(progress)
    progress.finish(ending(tmp_path))
    assert [json.loads(line)["event"] for line in shown.getvalue().splitlines()] == ["note", "end"]


@pytest.mark.parametrize("form", [PlainProgress, LiveProgress])
def test_an_early_end_without_a_start_is_shown(tmp_path: Path, form: type[Progress]) -> None:
    out, shown = console(terminal=form is LiveProgress)
    progress = form(out, out)
    progress.phase("starting 2 workers")
    summary = {"state": "failed", "epochs": 0, "steps": 0, "total_s": 1.0}
    progress.finish(ending(tmp_path, state="failed", exit_code=3, error=ERROR, summary=summary))
    assert "failed     0 epochs, 0 steps in 0:01\n" in shown.getvalue()


def test_an_epoch_with_unknown_numbers_is_shown() -> None:
    out, shown = console()
    standing = Standing(Clock())
    standing.update(start_event())
    event = epoch_event(1, **{"validation/loss": None, "train/loss": float("nan"), "best": False})
    standing.update(event)
    PlainProgress(out, out).handle(event, standing)
    assert "train loss nan  accuracy 88.00%  validation loss -  " in shown.getvalue()
