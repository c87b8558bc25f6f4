"""The one order in which the gradients of a step's micro-batches are added: a binary tree over 0..K-1.

Floating-point addition is not associative, so a sum is only the same for every number of workers if it is always
bracketed the same way. A node over n leaves has the largest power of two below n as its left child:

    K = 6:  ((0+1)+(2+3)) + (4+5)

A rank owns a contiguous block of leaves and folds it into the maximal subtrees that lie inside the block, at most
2 log2(K) of them, and one where the block is a subtree itself; what is above them is added across ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
Node = tuple[int, int]
"""A subtree by its leaves: from the first to before the last."""


def split(node: Node) -> tuple[Node, Node]:
    """The two children of a node with more than one leaf."""
    start, end = node
    left = 1 << (end - start - 1).bit_length() - 1
    return (start, start + left), (start + left, end)


def maximal_subtrees(leaves: int, block: range) -> list[Node]:
    """The largest nodes of the tree over `leaves` leaves that lie within a block, from left to right."""

    def within(node: Node) -> list[Node]:
        start, end = node
        if end <= block.start or block.stop <= start:
            return []
        if block.start <= start and end <= block.stop:
            return [node]
        left, right = split(node)
        return within(left) + within(right)

    return within((0, leaves)) if leaves else []


def add_up(leaves: int, value_of: dict[Node, T], add: Callable[[T, T], T]) -> T:
    """The value of the root, from the values of nodes that cover all leaves."""

    def total(node: Node) -> T:
        if node in value_of:
            return value_of[node]
        left, right = split(node)
        return add(total(left), total(right))

    return total((0, leaves))


@dataclass
class BlockFold(Generic[T]):
    """Folds the leaves of one block as they come, in order; `add` may reuse the memory of its first argument.

    No more than about log2(leaves) + 1 values are held at any time.
    """

    leaves: int
    block: range
    add: Callable[[T, T], T]
    _done: list[tuple[Node, T]] = field(default_factory=list)

    def resume(self, done: Sequence[tuple[Node, T]]) -> None:
        """Go on from what another fold of the same block has come to."""
        self._done = list(done)

    def push(self, leaf: int, value: T) -> None:
        """Add the next leaf and fold what has become complete."""
        self._done.append(((leaf, leaf + 1), value))
        while len(self._done) > 1 and self._are_siblings():
            (right, b), (left, a) = self._done.pop(), self._done.pop()
            self._done.append(((left[0], right[1]), self.add(a, b)))

    def _are_siblings(self) -> bool:
        left, right = self._done[-2][0], self._done[-1][0]
        return _is_node(self.leaves, (left[0], right[1])) and split((left[0], right[1])) == (left, right)

    def subtrees(self) -> Sequence[tuple[Node, T]]:
        """The maximal subtrees of the block, once all of its leaves were pushed."""
        return self._done


def _is_node(leaves: int, node: Node) -> bool:
    """Whether a range of leaves is a node of the tree over `leaves` leaves."""
    current = (0, leaves)
    while current != node:
        if current[1] - current[0] <= 1:
            return False
        left, right = split(current)
        current = left if node[1] <= left[1] else right
        if not (current[0] <= node[0] and node[1] <= current[1]):
            return False
    return True
