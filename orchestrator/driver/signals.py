"""Ctrl-C, SIGTERM and a closed terminal: first a request to stop at the next step with a checkpoint, the second time an end at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Handlers for as long as the block lasts. Before `graceful` is set there is nothing to save, so a signal ends it.

    An end at once is a KeyboardInterrupt in the main thread, whichever signal it was.
    """

    def __init__(self) -> None:
        self.requested = False
        self.graceful = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Again after `ray.init`, which puts a handler of its own in the place of SIGTERM's."""
        for number in _SIGNALS:
            # What nohup has set to be ignored stays ignored.
            if self._before.get(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested or not self.graceful:
            self.requested = True
            raise KeyboardInterrupt
        self.requested = True
