from __future__ import annotations

from orchestrator.reporting.standing import Standing
from tests.reporting.fake import Clock, epoch_event, events, start_event, step_event


def test_eta_is_from_the_steps_after_the_first() -> None:
    clock = Clock()
    standing = Standing(clock)
    clock.now += 30
    standing.update(start_event())
    assert standing.eta_s() is None
    for step in (1, 2, 3):
        clock.now += 10 if step == 1 else 2
        standing.update({"event": "heartbeat", "epoch": 1, "step": step})
    assert standing.eta_s() == 10.0
    assert standing.time_to_first_step_s == 40.0
    assert standing.elapsed_s() == 44.0
    assert standing.progress == 3 / 8


def test_resumed_progress_and_eta_count_from_the_checkpoint() -> None:
    clock = Clock()
    standing = Standing(clock)
    standing.update(start_event(resumed_from_step=4))
    assert (standing.step, standing.progress, standing.eta_s()) == (4, 0.5, None)
    standing.update(step_event(5))
    clock.now += 3
    standing.update(step_event(6))
    assert standing.eta_s() == 6.0


def test_the_best_and_the_last_epoch() -> None:
    standing = Standing(Clock())
    standing.update(start_event())
    standing.update(epoch_event(1, 0.9))
    standing.update(epoch_event(2, 0.8, best=False))
    assert (standing.last_epoch["epoch"], standing.best_epoch["epoch"]) == (2, 1)


def test_evaluating_is_between_the_last_step_of_an_epoch_and_its_end() -> None:
    standing = Standing(Clock())
    seen = []
    for event in events():
        standing.update(event)
        seen.append((event["event"], event.get("step"), standing.evaluating))
    assert [entry for entry in seen if entry[2]] == [
        ("heartbeat", 4, True), ("step", 4, True), ("heartbeat", 8, True), ("step", 8, True),
    ]  # fmt: skip


def test_workers_are_counted_when_they_change() -> None:
    standing = Standing(Clock())
    for count in (2, 2, 1):
        standing.update(start_event(workers=[{}] * count))
    assert (standing.worker_counts, standing.starts) == ([2, 1], 3)


def test_an_unknown_event_changes_nothing() -> None:
    standing = Standing(Clock())
    before = dict(vars(standing))
    standing.update({"event": "from the future"})
    assert vars(standing) == before
