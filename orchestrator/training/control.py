"""Agreement between ranks: one decision, taken by all of them at the same step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class ControlGroup:
    """A gloo group beside the one that moves gradients, for small values in host memory: it never waits for a GPU."""

    def __init__(self, world_size: int) -> None:
        self._distributed = world_size > 1
        self._group: Any = dist.new_group(backend="gloo") if self._distributed else None
        self._pending: tuple[torch.Tensor, Any] | None = None

    def vote(self, mine: bool) -> bool:
        """Cast this rank's vote and learn whether any rank said yes the last time, the same on every rank.

        The votes of a step travel while the next one is computed, so nobody waits for them.
        """
        agreed = self.settle()
        ballot = torch.tensor(int(mine))
        work = None
        if self._distributed:
            work = dist.all_reduce(ballot, dist.ReduceOp.MAX, self._group, async_op=True)
        self._pending = (ballot, work)
        return agreed

    def settle(self) -> bool:
        """The outcome of the last vote. Called before leaving the loop too, so that no vote is left under way."""
        if self._pending is None:
            return False
        ballot, work = self._pending
        if work is not None:
            work.wait()
        self._pending = None
        return bool(ballot)

    def gather(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's dictionary, in rank order, on every rank."""
        if not self._distributed:
            return [mine]
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine, group=self._group)
        return gathered
