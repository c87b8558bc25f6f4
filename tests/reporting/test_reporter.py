from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CheckpointError
from orchestrator.reporting.display import Progress
from orchestrator.reporting.plain import PlainProgress
from orchestrator.reporting.reporter import RunReporter
from orchestrator.reporting.run_folder import RunFolder
from orchestrator.reporting.tensorboard import TensorBoardTracker
from tests.reporting.fake import Clock, console, epoch_event, events, start_event, step_event

FINAL = {
    "stopped": False,
    "epochs": 2,
    "steps": 8,
    "samples_seen": 512,
    "train_loss": 0.25,
    "validation_loss": 0.3,
    "validation_accuracy": 0.88,
    "best_validation_accuracy": 0.88,
    "best_epoch": 2,
    "weights_sha256": "ab" * 32,
    "images_per_second": 9876.0,
    "peak_memory_mib": 512.0,
    "num_workers": 2,
    "precision": "fp32",
}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(str(tmp_path), "r", resume=False) as folder:
        yield folder


def reporter(folder: RunFolder, **changes: Any) -> RunReporter:
    progress = PlainProgress(console()[0], console()[0])
    return RunReporter(folder, changes.pop("progress", progress), changes.pop("trackers", []), Clock(), **changes)


def test_a_run_from_start_to_end(folder: RunFolder) -> None:
    report = reporter(folder, trackers=[TensorBoardTracker(folder.path / "tensorboard")], constants={"batch_size": 64})
    folder.write_env({"python": "3.11"})
    with report:
        for event in events():
            report.handle(event)
        returned = report.finish("finished", 0, FINAL)
    summary = read(folder.path / "summary.json")
    assert summary == returned
    assert summary == {
        **{k: v for k, v in FINAL.items() if k != "stopped"},
        "state": "finished",
        "time_to_first_step_s": 0.0,
        "total_s": 0.0,
        "batch_size": 64,
        "micro_batch_size": None,
        "micro_batches_per_step": None,
        "restarts": 0,
    }
    status = read(folder.path / "status.json")
    assert {k: status[k] for k in ("state", "exit_code", "progress", "step", "epoch", "error", "eta_s")} == {
        "state": "finished", "exit_code": 0, "progress": 1.0, "step": 8, "epoch": 2, "error": None, "eta_s": None,
    }  # fmt: skip
    lines = list(folder.metrics())
    assert [(line["event"], line["step"]) for line in lines if line["event"] == "epoch"] == [("epoch", 4), ("epoch", 8)]
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, 9))
    assert all("time" in line for line in lines)
    assert [w["host"] for w in read(folder.path / "env.json")["workers"]] == ["node-0", "node-1"]
    assert len(list((folder.path / "tensorboard").iterdir())) == 1


def test_status_is_written_at_most_twice_a_second_but_for_epochs(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    update = folder.update_status
    monkeypatch.setattr(folder, "update_status", lambda **fields: (written.append(fields["step"]), update(**fields)))
    clock = Clock()
    report = RunReporter(folder, Progress(*[console()[0]] * 2), clock=clock)
    report.handle(start_event())
    for step in range(1, 9):
        clock.now += 0.2
        report.handle({"event": "heartbeat", "epoch": 1, "step": step})
    assert written == [0, 3, 6]
    report.handle(epoch_event(2))
    assert written == [0, 3, 6, 8]


def test_status_while_running(folder: RunFolder) -> None:
    clock = Clock()
    report = RunReporter(folder, Progress(*[console()[0]] * 2), clock=clock)
    report.handle({"event": "note", "message": "before"})
    assert read(folder.path / "status.json")["state"] == "starting"
    for event in (start_event(), step_event(1), step_event(2)):
        clock.now += 2
        report.handle(event)
    status = read(folder.path / "status.json")
    assert (status["state"], status["step"], status["total_steps"], status["progress"]) == ("running", 2, 8, 0.25)
    assert status["eta_s"] == 12.0


def test_a_failure_is_in_status_with_its_place(folder: RunFolder) -> None:
    report = reporter(folder)
    for event in events(last_step=5):
        report.handle(event)
    report.finish("failed", 6, None, {"class": "NonFiniteError", "message": "nan", "rank": 1, "exit_code": 6})
    status, summary = read(folder.path / "status.json"), read(folder.path / "summary.json")
    assert status["error"] == {
        "class": "NonFiniteError",
        "message": "nan",
        "rank": 1,
        "node": "node-1",
        "epoch": 2,
        "step": 5,
        "advice": None,
        "retryable": False,
    }
    assert (status["state"], status["exit_code"]) == ("failed", 6)
    assert (summary["steps"], summary["epochs"], summary["samples_seen"]) == (5, 1, 320)
    assert (summary["best_epoch"], summary["weights_sha256"], summary["peak_memory_mib"]) == (1, None, None)


def test_a_failure_before_the_start(folder: RunFolder) -> None:
    report = reporter(folder)
    report.finish("failed", 3, None, {"class": "EnvironmentMismatchError", "message": "no GPU", "rank": 0})
    error = read(folder.path / "status.json")["error"]
    assert (error["epoch"], error["step"], error["node"]) == (None, None, None)
    assert read(folder.path / "summary.json")["num_workers"] is None


def test_a_resumed_run_has_each_step_once_and_remembers_the_best(tmp_path: Path, folder: RunFolder) -> None:
    report = reporter(folder)
    for event in events(last_step=6):
        report.handle(event)
    folder.write_traceback("Traceback")
    report.finish("stopped", 75)
    folder.close()
    with RunFolder.create(str(tmp_path), "r", resume=True) as again:
        report = reporter(again).__enter__()
        assert read(again.path / "status.json")["state"] == "starting"
        report.handle(start_event(resumed_from_step=4))
        assert not (again.path / "traceback.txt").exists()
        for step in (5, 6, 7, 8):
            report.handle(step_event(step))
        report.handle(epoch_event(2, 0.7, best=False))
        summary = report.finish("finished", 0)
        steps = [line["step"] for line in again.metrics() if line["event"] == "step"]
    assert steps == list(range(1, 9))
    assert (summary["best_epoch"], summary["best_validation_accuracy"], summary["validation_accuracy"]) == (
        1,
        pytest.approx(0.84),
        0.7,
    )


def test_a_restart_with_fewer_workers(folder: RunFolder) -> None:
    report = reporter(folder)
    for event in events(last_step=6):
        report.handle(event)
    report.handle(start_event(resumed_from_step=4, workers=[{"rank": 0, "host": "node-0", "device": "cpu"}]))
    summary = report.finish("finished", 0, FINAL | {"num_workers": 1})
    assert (summary["num_workers"], summary["restarts"]) == ([2, 1], 1)
    assert [line["step"] for line in folder.metrics() if line["event"] == "step"] == [1, 2, 3, 4]


class BrokenTracker:
    name = "Broken"

    def __init__(self, breaks_at: str) -> None:
        self.breaks_at = breaks_at
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.breaks_at:
            raise RuntimeError("no [route] to host")

    def start(self, event: dict[str, Any]) -> None:
        self._call("start")

    def log(self, event: dict[str, Any]) -> None:
        self._call("log")

    def close(self) -> None:
        self._call("close")


@pytest.mark.parametrize(("breaks_at", "calls"), [("start", 1), ("log", 2), ("close", 12)])
def test_a_tracker_that_fails_is_one_warning(folder: RunFolder, breaks_at: str, calls: int) -> None:
    (out, _), (err, warned) = console(), console()
    tracker = BrokenTracker(breaks_at)
    report = reporter(folder, progress=PlainProgress(out, err), trackers=[tracker])
    for event in events():
        report.handle(event)
    report.finish("finished", 0, FINAL)
    assert warned.getvalue() == "warning: Broken is not written any more: RuntimeError: no [route] to host\n"
    assert len(tracker.calls) == calls
    assert len(list(folder.metrics())) == 10


def test_a_terminal_that_is_gone_does_not_end_the_run(folder: RunFolder) -> None:
    class GoneProgress(Progress):
        def handle(self, event: dict[str, Any], standing: Any) -> None:
            raise OSError(5, "Input/output error")

    report = reporter(folder, progress=GoneProgress(console()[0], console()[0]))
    for event in events():
        report.handle(event)
    report.finish("finished", 0, FINAL)
    assert read(folder.path / "status.json")["state"] == "finished"


def test_a_full_disk_ends_the_run_and_the_end_is_shown(folder: RunFolder) -> None:
    out, shown = console()
    report = reporter(folder, progress=PlainProgress(out, out))
    report.handle(start_event())
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match="No space left"):
        report.handle(step_event(1))
    shutil.rmtree(folder.path)
    with pytest.raises(CheckpointError, match=r"summary\.json cannot be written"):
        report.finish("failed", 9, None, {"class": "CheckpointError", "message": "the disk is full"})
    assert "error: the disk is full" in shown.getvalue()


def test_a_uri_is_kept_up_to_date_and_a_failing_one_is_a_warning(tmp_path: Path) -> None:
    (out, _), (err, warned) = console(), console()
    there = tmp_path / "remote" / "r"
    with RunFolder.create(f"file://{tmp_path}/remote", "r", resume=False) as folder:
        report = reporter(folder, progress=PlainProgress(out, err))
        for event in events(last_step=4):
            report.handle(event)
        assert len((there / "metrics.jsonl").read_text().splitlines()) == 5
        shutil.rmtree(there)
        there.write_text("in the way")
        report.handle(step_event(5))
        report.handle(epoch_event(2))
        report.handle(epoch_event(2))
        assert warned.getvalue().count("cannot be written") == 1
        there.unlink()
        report.finish("finished", 0, FINAL)
        assert read(there / "summary.json")["state"] == "finished"


def test_many_steps_take_no_memory(folder: RunFolder) -> None:
    report = reporter(folder, progress=PlainProgress(console()[0], console()[0]))
    total = 30_000
    report.handle(start_event(total_steps=total, steps_per_epoch=total))
    for step in range(1, 1001):
        report.handle(step_event(step))
    tracemalloc.start()
    for step in range(1001, 5001):
        report.handle(step_event(step))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 50_000, f"{grown} bytes for 4000 steps"
