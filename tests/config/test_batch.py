"""The arithmetic of a batch."""

from __future__ import annotations

import re
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
    assert {len(r) for r in ranges[:-1]} <= {micro}
    assert len(ranges[-1]) <= micro + 1
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
        ({"batch_size": 4, "num_workers": 8}, "Use --batch-size 8, or --num-workers 4"),
        ({"accumulation_steps": 100}, "Use --batch-size 100, or --accumulation-steps 64"),
        ({"micro_batch_size": 100}, "--micro-batch-size 100 is more than --batch-size 64"),
        ({"micro_batch_size": 8, "accumulation_steps": 3}, "are 8 accumulation steps. Use --batch-size 24, or"),
        ({"batch_size": 7, "num_workers": 4}, "only 3 of them a step: 1 would never work. Use .*--num-workers 2,"),
        (
            {"num_workers": 4, "micro_batch_size": 32},
            "only 2 of them a step: 2 would never work. Use .*--num-workers 2, or --micro-batch-size 16",
        ),
    ],
)
def test_contradictions_are_refused_with_the_nearest_choice(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(**options)


optional_sizes = st.none() | st.integers(1, 60)
asked_batches = st.builds(
    TrainConfig,
    batch_size=st.integers(1, 60),
    num_workers=st.integers(0, 12) | st.builds("{0}:{0}".format, st.integers(1, 12)),
    micro_batch_size=optional_sizes,
    accumulation_steps=optional_sizes,
)


@given(asked_batches)
def test_each_choice_that_is_advised_works_by_itself(asked: TrainConfig) -> None:
    try:
        plan_batches(asked)
    except ConfigError as refusal:
        advice = str(refusal).rpartition("Use ")[2].rstrip(".").split(", or ")
    else:
        return
    for choice in advice:
        no, flag, value = re.fullmatch(r"(no )?--([a-z-]+)(?: (\d+))?", choice).groups()
        changed = asked.model_copy(update={flag.replace("-", "_"): None if no else int(value)})
        assert plan_batches(changed).micro_batches_per_step >= max(changed.max_workers, 1)


@given(asked_batches)
def test_an_accepted_plan_is_what_was_asked_for(asked: TrainConfig) -> None:
    try:
        result = plan_batches(asked)
    except ConfigError:
        return
    workers, count = max(asked.max_workers, 1), result.micro_batches_per_step
    assert count == len(result.micro_batches(asked.batch_size)) >= workers
    assert result.micro_batch_size == (asked.micro_batch_size or result.micro_batch_size)
    if asked.accumulation_steps and asked.micro_batch_size:
        assert len(block(count, workers, 0)) == asked.accumulation_steps


def test_256_on_3_workers_is_86_86_84() -> None:
    parts = plan(batch_size=256, num_workers=3).micro_batches(256)
    assert parts == [range(0, 86), range(86, 172), range(172, 256)]


def test_a_remainder_of_one_sample_joins_the_micro_batch_before_it() -> None:
    assert BatchPlan(9, 4).micro_batches(9) == [range(0, 4), range(4, 9)]
    assert BatchPlan(8, 4).micro_batches(5) == [range(0, 5)]
    assert BatchPlan(8, 4).micro_batches(1) == [range(0, 1)]
    assert BatchPlan(3, 1).micro_batches(3) == [range(0, 1), range(1, 2), range(2, 3)]


def test_absurd_sizes_are_counted_without_listing_them() -> None:
    assert BatchPlan(10**15 + 1, 10).micro_batches_per_step == 10**14
    with pytest.raises(ConfigError, match="--num-workers 1000000000000000\\.$"):
        plan(batch_size=10**15, num_workers=10**18)


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
