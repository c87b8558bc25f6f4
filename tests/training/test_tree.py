"""The canonical tree: every way of cutting it into blocks gives the same bits."""

from __future__ import annotations

import random
import struct

import pytest

from orchestrator.config.batch import block
from orchestrator.training.tree import BlockFold, add_up, maximal_subtrees, split


def single(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def add(a: float, b: float) -> float:
    return single(a + b)


def reference(values: list[float]) -> float:
    if len(values) == 1:
        return values[0]
    left = split((0, len(values)))[0][1]
    return add(reference(values[:left]), reference(values[left:]))


def leaves(count: int) -> list[float]:
    """Values of very different sizes that cancel: a different order of addition shows."""
    rng = random.Random(count)
    return [single(rng.uniform(-1, 1) * 10 ** rng.randint(-6, 6)) for _ in range(count)]


def test_the_left_child_is_the_largest_power_of_two_below() -> None:
    assert [split((0, n))[0][1] for n in range(2, 10)] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert split((4, 7)) == ((4, 6), (6, 7))


@pytest.mark.parametrize("count", range(1, 18))
def test_every_number_of_workers_gives_the_bits_of_the_tree(count: int) -> None:
    values = leaves(count)
    for workers in range(1, count + 1):
        nodes: dict[tuple[int, int], float] = {}
        for rank in range(workers):
            mine = block(count, workers, rank)
            fold = BlockFold(count, mine, add)
            for leaf in mine:
                fold.push(leaf, values[leaf])
                assert len(fold.subtrees()) <= 2 * count.bit_length()
            assert [node for node, _ in fold.subtrees()] == maximal_subtrees(count, mine)
            nodes |= dict(fold.subtrees())
        assert add_up(count, nodes, add) == reference(values)


def test_a_plain_sum_would_differ() -> None:
    differing = 0
    for count in range(3, 18):
        total = 0.0
        for value in leaves(count):
            total = add(total, value)
        differing += total != reference(leaves(count))
    assert differing > 5


def test_aligned_blocks_are_one_subtree_each() -> None:
    for count, workers in ((2, 2), (8, 2), (8, 4), (16, 4), (4, 4)):
        assert all(len(maximal_subtrees(count, block(count, workers, r))) == 1 for r in range(workers))


def test_an_empty_block_has_no_subtree() -> None:
    assert maximal_subtrees(1, range(1, 1)) == []
    assert maximal_subtrees(0, range(0)) == []
