"""Scalars of a run for TensorBoard, under the keys that metrics.jsonl has too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from orchestrator.reporting.standing import Event

_FLUSH_S = 2.0


class TensorBoardTracker:
    """Writes every key with a slash of a step or an epoch as a scalar, at its optimizer step.

    tensorboardX's SummaryWriter is not used: its thread dies of a full disk without a word, and the next `add_scalar`
    waits for ever on the full queue.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._flushed_at = 0.0

    def start(self, event: Event) -> None:
        """Open a file of events. What earlier files say about later steps than the one to go on from is taken back."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event as Record
        from tensorboardX.proto.event_pb2 import SessionLog

        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        before = len(list(self._folder.glob("events.*")))
        # Numbered: two starts within a second would otherwise write over each other.
        self._writer = EventsWriter(str(self._folder / "events"), f".{before}")
        if before:
            first = (event.get("resumed_from_step") or 0) + 1
            log = SessionLog(status=SessionLog.START)
            self._writer.write_event(Record(wall_time=time.time(), step=first, session_log=log))
        self._writer.flush()

    def log(self, event: Event) -> None:
        """Write the scalars of a step or an epoch."""
        from tensorboardX.proto.event_pb2 import Event as Record
        from tensorboardX.proto.summary_pb2 import Summary

        scalars = ((k, v) for k, v in event.items() if "/" in k and isinstance(v, int | float))
        values = [Summary.Value(tag=k, simple_value=v) for k, v in scalars]
        self._writer.write_event(Record(wall_time=time.time(), step=event["step"], summary=Summary(value=values)))
        now = time.monotonic()
        if event["event"] == "epoch" or now - self._flushed_at >= _FLUSH_S:
            self._writer.flush()
            self._flushed_at = now

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
