"""`RunReporter`: takes the events of a run to its files, its trackers and the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from orchestrator.errors import CheckpointError
from orchestrator.reporting.closing import Ending, State
from orchestrator.reporting.display import Progress
from orchestrator.reporting.run_folder import RunFolder
from orchestrator.reporting.standing import Clock, Event, Standing
from orchestrator.reporting.text import timestamp

_STATUS_S = 0.5


class Tracker(Protocol):
    """A place besides the files that metrics go to. What it raises is a warning, once, and its end."""

    @property
    def name(self) -> str: ...

    def start(self, event: Event) -> None: ...

    def log(self, event: Event) -> None: ...

    def close(self) -> None: ...


class RunReporter:
    """Reports one launch of a run. `handle` never raises for a tracker or a terminal, only for the run's own files.

    `started_at` is the reading of `clock` when the command began, by default now. `constants` are entries of
    summary.json that are known beforehand, such as the batch sizes.
    """

    def __init__(
        self,
        folder: RunFolder,
        progress: Progress,
        trackers: Sequence[Tracker] = (),
        clock: Clock = time.monotonic,
        *,
        started_at: float | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.standing = Standing(clock, started_at)
        self._progress = progress
        self._trackers = list(trackers)
        self._constants = dict(constants or {})
        self._status_at: float | None = None
        self._shows = True
        self._syncs = True

    def __enter__(self) -> Self:
        self.folder.update_status(state="starting", exit_code=None, error=None)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the display and the trackers. May be called more than once; does not raise."""
        for tracker in list(self._trackers):
            self._track(tracker, lambda t: t.close())
        self._trackers.clear()
        self._show(lambda: self._progress.close())

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Say what is being waited for."""
        self._show(lambda: self._progress.phase(text, done, total))

    def handle(self, event: Event) -> None:
        """Take one event in.

        Raises CheckpointError if a file of the run cannot be written.
        """
        kind = event["event"]
        event = {"time": timestamp(), **event}
        self.standing.update(event)
        if kind == "start":
            self._begin(event)
        elif kind in ("step", "epoch"):
            self.folder.append_metrics(event)
            for tracker in list(self._trackers):
                self._track(tracker, lambda t: t.log(event))
        self._write_status(at_once=kind in ("start", "epoch"))
        self._show(lambda: self._progress.handle(event, self.standing))
        if kind in ("epoch", "checkpoint"):
            self._sync()

    def _begin(self, event: Event) -> None:
        self.folder.clear_failure()
        self.folder.truncate_metrics(self.standing.step)
        for line in self.folder.metrics():
            if line.get("event") == "epoch":
                self.standing.recall(line)
        self.folder.write_env({"workers": event.get("workers")})
        for tracker in list(self._trackers):
            self._track(tracker, lambda t: t.start(event))

    def finish(
        self,
        state: State,
        exit_code: int,
        final: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        *,
        arguments: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Write the last status.json and summary.json, show the end, and return the summary.

        `final` is what `fit` returned. `error` holds at least class and message; where it was is added. `arguments`
        are those of the command line, to show the command that goes on. Raises CheckpointError if the files cannot be
        written, after the end has been shown.
        """
        summary = self.summary(state, final)
        error = None if error is None else self._complete(error)
        ending = Ending(
            state=state,
            exit_code=exit_code,
            run_name=self.folder.run_name,
            location=self.folder.location,
            path=self.folder.path,
            summary=summary,
            error=error,
            arguments=arguments,
        )
        try:
            self.folder.write_summary(summary)
            self.folder.update_status(
                **self._status(), **{"state": state, "exit_code": exit_code, "error": error, "eta_s": None}
            )
        finally:
            self.close()
            self._show(lambda: self._progress.finish(ending))
        self.folder.sync()
        return summary

    def summary(self, state: str, final: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The entries of summary.json: measured here, then `constants`, then `final`. What nobody knows is None.

        `total_s`, `time_to_first_step_s` and `restarts` are of this launch.
        """
        now = self.standing
        epoch, best, steps = now.last_epoch, now.best_epoch, now.step_metrics
        counts = now.worker_counts
        measured = {
            "state": state,
            "epochs": epoch.get("epoch", 0),
            "steps": now.step,
            "samples_seen": steps.get("samples_seen"),
            "train_loss": epoch.get("train/loss"),
            "validation_loss": epoch.get("validation/loss"),
            "validation_accuracy": epoch.get("validation/accuracy"),
            "best_validation_accuracy": best.get("validation/accuracy"),
            "best_epoch": best.get("epoch"),
            "weights_sha256": None,
            "images_per_second": {**steps, **epoch}.get("perf/images_per_second"),
            "time_to_first_step_s": now.time_to_first_step_s,
            "total_s": now.elapsed_s(),
            "peak_memory_mib": None,
            "batch_size": None,
            "micro_batch_size": None,
            "micro_batches_per_step": None,
            "num_workers": counts if len(counts) > 1 else next(iter(counts), None),
            "restarts": max(now.starts - 1, 0),
            "precision": now.start.get("precision"),
        }
        known = {k: v for k, v in {**self._constants, **(final or {})}.items() if v is not None and k != "stopped"}
        if len(counts) > 1:
            known.pop("num_workers", None)
        return {**measured, **known, "state": state}

    def _complete(self, error: Mapping[str, Any]) -> dict[str, Any]:
        now = self.standing
        place = {"epoch": now.epoch or None, "step": now.step or None} if now.starts else {"epoch": None, "step": None}
        keys = ("class", "message", "rank", "node", "epoch", "step", "advice", "retryable")
        node = self._host_of(error.get("rank"))
        known = {**place, "node": node, "retryable": False, **{k: v for k, v in error.items() if v is not None}}
        return {key: known.get(key) for key in keys}

    def _host_of(self, rank: int | None) -> str | None:
        workers = self.standing.start.get("workers") or []
        return next((w.get("host") for w in workers if rank is not None and w.get("rank") == rank), None)

    def _status(self) -> dict[str, Any]:
        now = self.standing
        return {
            "epoch": now.epoch,
            "epochs": now.epochs,
            "step": now.step,
            "total_steps": now.total_steps,
            "progress": now.progress,
        }

    def _write_status(self, *, at_once: bool) -> None:
        now = self.standing.clock()
        if at_once or self._status_at is None or now - self._status_at >= _STATUS_S:
            self._status_at = now
            state = "running" if self.standing.starts else "starting"
            self.folder.update_status(
                **self._status(), state=state, eta_s=self.standing.eta_s(), error=None, exit_code=None
            )

    def _track(self, tracker: Tracker, act: Callable[[Tracker], None]) -> None:
        try:
            act(tracker)
        except Exception as error:
            self._trackers.remove(tracker)
            self._warn(f"{tracker.name} is not written any more: {type(error).__name__}: {error}")

    def _sync(self) -> None:
        """Copy to a URI. One that fails now may take it at the end, and until then nothing is lost here."""
        try:
            self.folder.sync()
        except CheckpointError as error:
            if self._syncs:
                self._warn(f"{error} It is tried again after each epoch.")
            self._syncs = False

    def _warn(self, message: str) -> None:
        self._show(lambda: self._progress.handle({"event": "note", "message": message}, self.standing))

    def _show(self, act: Callable[[], None]) -> None:
        """A terminal that is gone, or a log on a full disk, ends what is shown and not the training."""
        if self._shows:
            try:
                act()
            except OSError:
                self._shows = False
