"""The mailbox between rank 0 and the driver, as plain coroutines."""

from __future__ import annotations

import asyncio

from orchestrator.driver.channel import EventChannel


def test_events_arrive_in_order_and_once() -> None:
    async def story() -> None:
        channel = EventChannel()
        assert await channel.put([{"n": 1}, {"n": 2}]) is False
        await channel.put([{"n": 3}])
        assert [e["n"] for e in await channel.take(0)] == [1, 2, 3]
        assert await channel.take(0) == []

    asyncio.run(story())


def test_a_waiting_driver_gets_an_event_at_once() -> None:
    async def story() -> list[dict[str, int]]:
        channel = EventChannel()
        waiting = asyncio.create_task(channel.take(60))
        await asyncio.sleep(0)
        await channel.put([{"n": 1}])
        return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(story()) == [{"n": 1}]


def test_a_request_to_stop_is_in_the_next_answer() -> None:
    async def story() -> tuple[bool, bool]:
        channel = EventChannel()
        before = await channel.put([])
        await channel.request_stop()
        return before, await channel.put([])

    assert asyncio.run(story()) == (False, True)
