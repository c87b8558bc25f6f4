"""The adapter between Ray Train and the loop: the function that each worker runs, and the session over `ray.train`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

from orchestrator.config.batch import BatchPlan
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import DatasetInfo, is_prepared, prepare_dataset
from orchestrator.errors import DataError
from orchestrator.training.loop import fit
from orchestrator.training.session import Event, checkpoint_step, ddp_options

_SEND_INTERVAL_S = 0.25
_LAST_WORDS_S = 10.0


def train_worker(parcel: dict[str, Any]) -> dict[str, Any]:
    """Train on this worker. `parcel` holds plain values and the channel to the driver; the result is rank 0's."""
    config = TrainConfig(**parcel["config"])
    info = _prepare_on_this_node(config, DatasetInfo.from_dict(parcel["info"]))
    session = RaySession(parcel["channel"], parcel["resume_from"])
    try:
        return fit(config, info, BatchPlan(**parcel["plan"]), session)
    finally:
        session.close()


def _prepare_on_this_node(config: TrainConfig, expected: DatasetInfo) -> DatasetInfo:
    """Decode the dataset unless this node has it; every node must come to what the driver saw."""
    if is_prepared(expected):
        return expected
    info = prepare_dataset(config)
    for field in ("num_train", "num_validation", "class_names", "content"):
        here, there = getattr(info, field), getattr(expected, field)
        if here != there:
            raise DataError(
                f"The dataset {config.dataset} on node {ray.util.get_node_ip_address()} is not the one that the driver "
                f"saw: {field} is {here} here and {there} there. Use storage that all nodes share, or equal copies."
            )
    return info


class RaySession:
    """`orchestrator.training.session.Session` over Ray Train."""

    def __init__(self, channel: Any, resume_from: str | None) -> None:
        context = ray.train.get_context()
        self.rank = context.get_world_rank()
        self.world_size = context.get_world_size()
        self.device: torch.device = ray.train.torch.get_device()
        self._driver = _DriverLine(channel) if self.rank == 0 else None
        self._resume_from = Path(resume_from) if resume_from else None

    def prepare_model(self, model: nn.Module, *, has_unused: bool) -> nn.Module:
        prepared: nn.Module = ray.train.torch.prepare_model(model, parallel_strategy_kwargs=ddp_options(has_unused))
        return prepared

    def emit(self, event: Event) -> None:
        if self._driver is not None:
            self._driver.send(event)

    def close(self) -> None:
        """Wait until the driver has what was said: this process may end before its last words have left."""
        if self._driver is not None:
            self._driver.flush()

    def stop_requested(self) -> bool:
        return self._driver is not None and self._driver.stop_requested

    def restore(self) -> Path | None:
        """The newest of Ray's checkpoint, which a restarted worker group goes on from, and the one asked for."""
        candidates = [self._resume_from] if self._resume_from else []
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            is_local = isinstance(checkpoint.filesystem, pyarrow.fs.LocalFileSystem)
            candidates.append(Path(checkpoint.path if is_local else checkpoint.to_directory()))
        return max(candidates, key=checkpoint_step, default=None)

    def save_checkpoint(self, name: str, score: float, write: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory() if self.rank == 0 else nullcontext() as folder:
            checkpoint = None
            if folder is not None:
                write(Path(folder))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"score": score}, checkpoint=checkpoint, checkpoint_dir_name=name)


class _DriverLine:
    """Rank 0's end of the channel: sends in bundles, waits for no answer, and hears a request to stop in the replies."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._waiting: list[Event] = []
        self._reply: Any = None
        self._sent_at = 0.0
        self.stop_requested = False

    def send(self, event: Event) -> None:
        # Of several heartbeats on the way only the newest says anything.
        if self._waiting and self._waiting[-1]["event"] == "heartbeat" == event["event"]:
            self._waiting.pop()
        self._waiting.append(event)
        now = time.monotonic()
        if event["event"] == "heartbeat" and now - self._sent_at < _SEND_INTERVAL_S:
            return
        self._hear()
        self._reply = self._channel.put.remote(self._waiting)
        self._waiting, self._sent_at = [], now

    def flush(self) -> None:
        if self._reply is not None:
            ray.wait([self._reply], timeout=_LAST_WORDS_S)

    def _hear(self) -> None:
        if self._reply is not None and ray.wait([self._reply], timeout=0)[0]:
            self.stop_requested = self.stop_requested or ray.get(self._reply)
