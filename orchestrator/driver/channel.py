"""The way of events from rank 0 to the driver, and of a request to stop back, through a small actor."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

Event = dict[str, Any]


class EventChannel:
    """A mailbox that keeps events until the driver takes them. An async actor: a waiting driver blocks no worker."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._stop = False

    async def put(self, events: list[Event]) -> bool:
        """Leave events for the driver; the answer is whether it wants the run to stop."""
        self._events.extend(events)
        self._arrived.set()
        return self._stop

    async def take(self, timeout_s: float) -> list[Event]:
        """All events since the last call, as soon as there are any, or none after `timeout_s`."""
        if not self._events:
            try:
                await asyncio.wait_for(self._arrived.wait(), timeout_s)
            except TimeoutError:
                return []
        self._arrived.clear()
        events, self._events = self._events, []
        return events

    async def request_stop(self) -> None:
        self._stop = True


def open_channel() -> Any:
    """Start the actor on this node, beside the driver; it takes no CPU from the workers. Ray must be running."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(EventChannel).options(num_cpus=0, scheduling_strategy=here).remote()
