from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from tensorboardX.proto.event_pb2 import Event, SessionLog

from orchestrator.reporting.tensorboard import TensorBoardTracker
from tests.reporting.fake import epoch_event, start_event, step_event


def read(folder: Path) -> list[list[Any]]:
    """The records of each file: an 8-byte length, a 4-byte checksum, the record, a 4-byte checksum."""
    files = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name.rpartition(".")[2]):
        data, records = file.read_bytes(), []
        while data:
            size = int.from_bytes(data[:8], "little")
            event: Message = Event()
            event.ParseFromString(data[12 : 12 + size])
            records.append(event)
            data = data[16 + size :]
        files.append(records)
    return files


def test_scalars_have_the_keys_and_steps_of_the_events(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    tracker.start(start_event())
    tracker.log(step_event(4, **{"train/grad_norm": None}))
    tracker.log(epoch_event(1))
    tracker.close()
    (records,) = read(tmp_path / "tensorboard")
    assert records[0].file_version == "brain.Event:2"
    scalars = [{v.tag: round(v.simple_value, 4) for v in r.summary.value} for r in records[1:]]
    assert [r.step for r in records[1:]] == [4, 4]
    assert scalars[0] == {
        "train/loss": 0.25, "train/accuracy": 0.871, "train/lr": 0.001, "perf/images_per_second": 12345.5996,
    }  # fmt: skip
    assert scalars[1]["validation/accuracy"] == 0.9


def test_what_is_logged_is_on_disk_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(start_event())
    tracker.log(epoch_event(1))
    assert read(tmp_path)[0][-1].step == 4
    tracker.close()


def test_resume_takes_later_steps_back(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    for resumed_from in (None, 4):
        tracker.start(start_event(resumed_from_step=resumed_from))
        tracker.log(step_event(5))
    tracker.close()
    first, second = read(tmp_path)
    assert [r.step for r in first[1:]] == [5]
    assert (second[1].session_log.status, second[1].step) == (SessionLog.START, 5)
    assert second[2].step == 5


def test_close_before_start(tmp_path: Path) -> None:
    TensorBoardTracker(tmp_path / "never").close()
    assert not (tmp_path / "never").exists()
