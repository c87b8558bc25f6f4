"""Where a run is, folded from its events: a few numbers, however many steps it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Clock = Callable[[], float]


class Standing:
    """Follows the events of one launch; every part of the reporting reads from it.

    Times are seconds of `clock`. `started_at` is when the command began, by default now.
    """

    def __init__(self, clock: Clock = time.monotonic, started_at: float | None = None) -> None:
        self.clock = clock
        self.started_at = clock() if started_at is None else started_at
        self.start: Event = {}
        self.step_metrics: Event = {}
        self.last_epoch: Event = {}
        self.best_epoch: Event = {}
        self.epoch = 0
        self.step = 0
        self.starts = 0
        self.worker_counts: list[int] = []
        self.time_to_first_step_s: float | None = None
        self.epoch_s: float | None = None
        self._paced_from: tuple[float, int] | None = None
        self._epoch_began_at = self._heard_at = self.started_at

    @property
    def epochs(self) -> int | None:
        return self.start.get("epochs")

    @property
    def total_steps(self) -> int | None:
        return self.start.get("total_steps")

    @property
    def progress(self) -> float:
        """Part of the steps that is done, 0 to 1."""
        return min(self.step / self.total_steps, 1.0) if self.total_steps else 0.0

    @property
    def training(self) -> bool:
        """Whether a step of this start has been heard of."""
        return self._paced_from is not None

    @property
    def evaluating(self) -> bool:
        """Whether the steps of an epoch are done and its evaluation has not been heard of."""
        per_epoch = self.start.get("steps_per_epoch") or 0
        at_end = self.step == self.total_steps or (per_epoch > 0 and self.step % per_epoch == 0)
        return self.training and at_end and self.last_epoch.get("step") != self.step

    def elapsed_s(self) -> float:
        return self.clock() - self.started_at

    def eta_s(self) -> float | None:
        """Seconds to the last step at the pace since the first one, evaluations and checkpoints included."""
        if self._paced_from is None or not self.total_steps:
            return None
        since, first = self._paced_from
        if self.step <= first:
            return None
        return max(self.total_steps - self.step, 0) * (self._heard_at - since) / (self.step - first)

    def update(self, event: Event) -> None:
        """Take one event in; an unknown one changes nothing."""
        kind = event.get("event")
        if kind == "start":
            self._begin(event)
        elif kind in ("step", "heartbeat"):
            self._advance(event)
        elif kind == "epoch":
            self._advance(event)
            self._end_epoch(event)

    def recall(self, epoch: Event) -> None:
        """Take in an epoch of an earlier launch, without its times."""
        self.last_epoch = epoch
        if epoch.get("best"):
            self.best_epoch = epoch

    def _begin(self, event: Event) -> None:
        self.start = event
        self.starts += 1
        self.step = event.get("resumed_from_step") or 0
        self.epoch = 0
        self.step_metrics, self.last_epoch, self.best_epoch = {}, {}, {}
        self._paced_from = None
        self._epoch_began_at = self.clock()
        workers = len(event.get("workers") or [])
        if self.worker_counts[-1:] != [workers]:
            self.worker_counts.append(workers)

    def _advance(self, event: Event) -> None:
        self._heard_at = self.clock()
        self.epoch, self.step = event["epoch"], event["step"]
        if self._paced_from is None:
            self._paced_from = (self._heard_at, self.step)
        if self.time_to_first_step_s is None:
            self.time_to_first_step_s = self._heard_at - self.started_at
        if event["event"] == "step":
            self.step_metrics = event

    def _end_epoch(self, event: Event) -> None:
        now = self.clock()
        self.epoch_s, self._epoch_began_at = now - self._epoch_began_at, now
        self.recall(event)
