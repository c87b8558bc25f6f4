"""Running a checked run, in this process or on Ray, and following it to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.driver.cluster import ray_cluster
from orchestrator.driver.failure import Failure, explain
from orchestrator.driver.preflight import CheckedRun
from orchestrator.driver.signals import StopSignals

Event = dict[str, Any]
_POLL_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """How training ended: with final numbers, with a failure, or at once on a second Ctrl-C, with neither."""

    final: dict[str, Any] | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Launch:
    """A checked run with its places and its listeners.

    `storage_path` is the run's folder or URI, and checkpoints go to `checkpoints` below it. `handle` gets every event,
    `phase` a few words on what is waited for.
    """

    checked: CheckedRun
    storage_path: str
    resume_from: str | None
    handle: Callable[[Event], None]
    phase: Callable[[str], None]
    signals: StopSignals
    started_at: float = field(default_factory=time.monotonic)

    def should_stop(self) -> bool:
        limit = self.checked.config.max_time
        return self.signals.requested or (limit is not None and time.monotonic() - self.started_at > limit)


def train(launch: Launch) -> Outcome:
    """Train to the end. What belongs to the run is in the outcome; only a second Ctrl-C raises KeyboardInterrupt."""
    try:
        final = _train_here(launch) if launch.checked.config.max_workers == 0 else _train_on_ray(launch)
    except Exception as error:
        return Outcome(failure=explain(error))
    finally:
        launch.signals.graceful = False
    return Outcome(final=final)


def _train_here(launch: Launch) -> dict[str, Any]:
    from orchestrator.training.device import choose_device
    from orchestrator.training.loop import fit
    from orchestrator.training.session import LocalSession

    checked = launch.checked
    session = LocalSession(
        device=choose_device(checked.config.use_gpu),
        checkpoints=Path(launch.storage_path) / "checkpoints",
        resume_from=Path(launch.resume_from) if launch.resume_from else None,
        keep_checkpoints=checked.config.keep_checkpoints,
        on_event=launch.handle,
        should_stop=launch.should_stop,
    )
    launch.signals.graceful = True
    return fit(checked.config, checked.info, checked.plan, session)


def _train_on_ray(launch: Launch) -> dict[str, Any]:
    checked = launch.checked
    launch.phase("starting Ray")
    with ray_cluster(checked.config):
        launch.signals.install()
        # These import Ray, which reads its environment when it is imported: ray_cluster has just set it.
        from orchestrator.driver.channel import open_channel
        from orchestrator.driver.trainer import build_trainer

        workers = checked.config.num_workers
        launch.phase(f"starting {workers} worker{'s' * (workers != 1)}")
        channel = open_channel()
        trainer = build_trainer(
            checked.config,
            checked.info,
            checked.plan,
            channel,
            storage_path=launch.storage_path,
            resume_from=launch.resume_from,
        )
        fitting = _Fitting(trainer)
        _follow(launch, fitting, channel)
        return fitting.result()


class _Fitting:
    """`trainer.fit()` in a thread of its own: the main thread follows the events and hears signals.

    Off the main thread Ray installs no Ctrl-C handler of its own.
    """

    def __init__(self, trainer: Any) -> None:
        self._value: dict[str, Any] | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True)
        self._thread.start()

    def _fit(self, trainer: Any) -> None:
        try:
            self._value = trainer.fit().return_value
        except Exception as error:
            self._error = error

    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> dict[str, Any]:
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._value is None:
            raise RuntimeError("Ray ended the run without a result of rank 0.")
        return self._value


def _follow(launch: Launch, fitting: _Fitting, channel: Any) -> None:
    """Hand events on until training ends; pass on a request to stop once."""
    import ray

    asked = False
    while fitting.running():
        for event in ray.get(channel.take.remote(_POLL_S)):
            # From the first word of a worker on there is something to save.
            launch.signals.graceful = True
            launch.handle(event)
        if not asked and launch.should_stop():
            channel.request_stop.remote()
            asked = True
    for event in ray.get(channel.take.remote(0)):
        launch.handle(event)
