"""The order of samples, their placement on ranks, and keyed randomness."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.batch import BatchPlan
from orchestrator.training.order import epoch_order, key, steps_of_epoch, subset


def ids_of_steps(plan: BatchPlan, order: torch.Tensor, world_size: int) -> list[list[list[int]]]:
    """Per step the ids of each micro-batch, in the order of the micro-batches, over all ranks."""
    steps = plan.steps_per_epoch(len(order))
    result: list[list[list[int]]] = [[] for _ in range(steps)]
    for rank in range(world_size):
        for step in steps_of_epoch(plan, order, rank=rank, world_size=world_size):
            result[step.index] += [micro.ids.tolist() for micro in step.micro_batches]
    return result


def test_three_epochs_have_three_orders_and_a_rerun_has_the_same() -> None:
    ids = torch.arange(8)
    orders = [epoch_order(ids, 0, epoch).tolist() for epoch in (1, 2, 3)]
    assert len({tuple(o) for o in orders}) == 3
    assert all(sorted(o) == list(range(8)) for o in orders)
    assert orders == [epoch_order(ids, 0, epoch).tolist() for epoch in (1, 2, 3)]
    assert orders != [epoch_order(ids, 1, epoch).tolist() for epoch in (1, 2, 3)]


@given(
    samples=st.integers(1, 200),
    batch=st.integers(1, 50),
    micro=st.integers(1, 50),
    world_size=st.integers(1, 6),
)
def test_the_ids_of_a_step_do_not_depend_on_the_workers(samples: int, batch: int, micro: int, world_size: int) -> None:
    plan = BatchPlan(batch, min(micro, batch))
    order = epoch_order(torch.arange(samples), 3, 1)
    alone, together = ids_of_steps(plan, order, 1), ids_of_steps(plan, order, world_size)
    assert together == alone
    assert sorted(i for step in alone for micro_batch in step for i in micro_batch) == list(range(samples))
    assert [i for step in alone for micro_batch in step for i in micro_batch] == order.tolist()


def test_every_rank_sees_the_size_of_the_whole_step() -> None:
    plan = BatchPlan(8, 2)
    for rank in range(4):
        steps = list(steps_of_epoch(plan, torch.arange(10), rank=rank, world_size=4))
        assert [(s.samples, s.micro_batch_count) for s in steps] == [(8, 4), (2, 1)]
    assert [len(s.micro_batches) for s in steps] == [1, 0]


def test_resuming_within_an_epoch_gives_the_rest_of_it() -> None:
    plan, order = BatchPlan(4, 2), epoch_order(torch.arange(19), 0, 1)
    whole = list(steps_of_epoch(plan, order, rank=0, world_size=1))
    rest = list(steps_of_epoch(plan, order, rank=0, world_size=1, first_step=3))
    assert [s.index for s in rest] == [3, 4]
    assert [m.ids.tolist() for s in rest for m in s.micro_batches] == [
        m.ids.tolist() for s in whole[3:] for m in s.micro_batches
    ]


def test_keys_of_different_purposes_differ_and_fit_a_seed() -> None:
    keys = {key(s, p, a, b) for s in range(3) for p in ("order", "augment") for a in range(5) for b in range(5)}
    assert len(keys) == 3 * 2 * 25
    assert all(0 <= k < 2**63 for k in keys)


def test_a_subset_is_a_function_of_the_seed() -> None:
    first = subset(1000, 100, 0, "train")
    assert len(first) == 100
    assert first.tolist() == sorted(set(first.tolist()))
    assert first.tolist() == subset(1000, 100, 0, "train").tolist()
    assert first.tolist() != subset(1000, 100, 1, "train").tolist()
    assert subset(5, None, 0, "train").tolist() == subset(5, 9, 0, "train").tolist() == [0, 1, 2, 3, 4]
