"""The arithmetic of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.batch import BatchPlan, block, imbalance, plan_batches
from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError


def plan(**options: Any) -> BatchPlan:
    return plan_batches(TrainConfig(**options))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_micro_batches_partition_a_step(batch: int, micro: int, samples: int) -> None:
    samples = min(samples, batch)
    ranges = BatchPlan(batch, micro).micro_batches(samples)
    assert [i for r in ranges for i in r] == list(range(samples))
    plan_of_all = BatchPlan(batch, micro)
    assert plan_of_all.micro_batches_per_step == len(plan_of_all.micro_batches(batch))
    assert all(len(r) <= micro + 1 for r in ranges)
    if micro > 1 and samples > 1:
        assert min(len(r) for r in ranges) > 1


@given(st.integers(0, 100), st.integers(1, 20))
def test_blocks_cover_and_differ_by_at_most_one(count: int, workers: int) -> None:
    blocks = [block(count, workers, rank) for rank in range(workers)]
    assert [i for b in blocks for i in b] == list(range(count))
    sizes = [len(b) for b in blocks]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_the_lines_that_a_run_begins_with() -> None:
    assert plan(batch_size=256, num_workers=2, accumulation_steps=2).describe(2) == (
        "global batch 256 = 4 micro-batches of 64 (2 workers x 2 accumulation steps)"
    )
    assert plan(batch_size=256, num_workers=3).describe(3) == (
        "global batch 256 = 3 micro-batches of 86, the last of 84 (3 workers x 1 accumulation step)"
    )
    assert plan(batch_size=64, num_workers=0).describe(0) == "global batch 64 = 1 micro-batch of 64 (in this process)"
    assert plan(batch_size=40, micro_batch_size=8, num_workers=2).describe(2).endswith("2-3 accumulation steps)")


def test_an_elastic_run_is_planned_for_its_most_workers() -> None:
    assert plan(batch_size=64, num_workers="2:4") == plan(batch_size=64, num_workers=4) == BatchPlan(64, 16)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 4, "num_workers": 8}, "Use --batch-size 8 or more, or --num-workers 4 or fewer"),
        ({"accumulation_steps": 100}, "Use --accumulation-steps 64 or fewer"),
        ({"micro_batch_size": 100}, "--micro-batch-size 100 is more than --batch-size 64"),
        ({"micro_batch_size": 8, "accumulation_steps": 3}, "are 8 accumulation steps.*use --batch-size 24"),
        ({"num_workers": 4, "micro_batch_size": 32}, "only 2 of them a step: 2 would never work. Use --num-workers 2"),
    ],
)
def test_contradictions_are_refused_with_the_nearest_choice(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 8, "num_workers": 8},
        {"accumulation_steps": 64},
        {"micro_batch_size": 8, "accumulation_steps": 3, "batch_size": 24},
        {"num_workers": 2, "micro_batch_size": 32},
        {"micro_batch_size": 8, "accumulation_steps": 8},
    ],
)
def test_what_was_advised_works(options: dict[str, Any]) -> None:
    result = plan(**options)
    assert result.micro_batches_per_step >= options.get("num_workers", 1)


@given(st.integers(1, 300), st.integers(1, 12))
def test_every_worker_has_something_to_do_or_the_plan_is_refused(batch: int, workers: int) -> None:
    config = TrainConfig(batch_size=batch, num_workers=workers)
    try:
        result = plan_batches(config)
    except ConfigError:
        assert batch < 2 * workers or workers * (-(-batch // workers)) - batch >= -(-batch // workers) - 1
    else:
        assert result.micro_batches_per_step >= workers


def test_a_batch_larger_than_memory_is_planned_without_being_listed() -> None:
    assert plan(batch_size=10**15, micro_batch_size=1).micro_batches_per_step == 10**15


def test_an_unbalanced_choice_is_said() -> None:
    assert imbalance(plan(batch_size=256, num_workers=3), 3) is None
    unbalanced = imbalance(BatchPlan(40, 8), 2)
    assert unbalanced is not None
    assert "the busiest worker gets 24 and the least busy 16" in unbalanced


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_steps_of_an_epoch_cover_all_samples(samples: int, batch: int) -> None:
    steps = BatchPlan(batch, batch).steps_per_epoch(samples)
    assert (steps - 1) * batch < samples <= steps * batch
