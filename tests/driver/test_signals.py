"""Ctrl-C and SIGTERM: once and twice, before and after there is something to save."""

from __future__ import annotations

import os
import signal

import pytest

from orchestrator.driver.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    with StopSignals() as signals:
        signals.graceful = True
        os.kill(os.getpid(), number)
        assert signals.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_with_nothing_to_save_the_first_one_ends() -> None:
    with StopSignals() as signals, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.requested


def test_the_handlers_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert signal.getsignal(signal.SIGTERM) == signals._handle
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
