"""The way of threads to the loop: one wake-up for a batch, whoever waits for it, and none that is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from rocketq import AsyncSendFuture, MessageQueue, SendResult, SendStatus
from rocketq.aio.home_loop import HomeLoop, News
from rocketq.aio.producing.send_future import Outcomes
from rocketq.consuming.fetching.changes import Changes
from rocketq.producing.accumulation.send_future import BatchOutcome


class CountedLoop(HomeLoop):
    """Counts what threads tell it."""

    def __init__(self) -> None:
        super().__init__("The test")
        self.posts = 0

    def post(self, call: Callable[[Any], object], argument: Any) -> None:
        self.posts += 1
        super().post(call, argument)


def settle(outcome: BatchOutcome, rows: int) -> None:
    """Do what a sending thread does when it has stored a batch."""
    result = SendResult(SendStatus.SEND_OK, MessageQueue("t", "b", 0), 7, rows)
    outcome.settle(rows, [(np.arange(rows), result)], None)
    outcome.call_back()


def test_a_batch_wakes_the_loop_once_for_all_of_its_messages() -> None:
    async def work() -> None:
        home = CountedLoop()
        outcomes, outcome = Outcomes(home), BatchOutcome()
        futures = [AsyncSendFuture(outcome, row, outcomes) for row in range(1_000)]
        tasks = [asyncio.ensure_future(future) for future in futures]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.to_thread(settle, outcome, 1_000)
        offsets = [(await task).offset for task in tasks[1:]]
        assert offsets == list(range(8, 1_007))
        assert home.posts == 1
        assert (await futures[0]).offset == 7
        assert home.posts == 1, "what is known needs nobody"

    asyncio.run(work())


def test_a_change_between_the_look_and_the_wait_ends_the_wait_at_once() -> None:
    async def work() -> None:
        changes = Changes()
        news = News(HomeLoop("The test"), changes)
        version = news.version
        with changes:
            changes.notify_all()
        await news.after(version, None)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_change_wakes_every_task_that_waits_and_a_wait_ends_at_its_time() -> None:
    async def work() -> None:
        changes = Changes()
        home = CountedLoop()
        news = News(home, changes)
        waiting = [asyncio.create_task(news.after(news.version, None)) for _ in range(5)]
        await asyncio.sleep(0)
        await news.after(news.version, 0.001)
        waiting[0].cancel()

        def change() -> None:
            with changes:
                changes.notify_all()

        await asyncio.to_thread(change)
        await asyncio.gather(*waiting[1:])
        assert home.posts == 1

    asyncio.run(asyncio.wait_for(work(), 60))


def test_news_for_a_loop_that_is_closed_harm_nobody() -> None:
    home = HomeLoop("The test")

    async def bind() -> None:
        home.check()

    asyncio.run(bind())
    made: list[int] = []
    home.post(made.append, 1)
    home.post(made.append, 2)
    assert made == []


def test_a_call_that_fails_does_not_hold_back_the_others() -> None:
    async def work() -> list[int]:
        home = HomeLoop("The test")
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        home.check()
        made: list[int] = []
        home.post(lambda number: number / 0, 1)
        home.post(made.append, 2)
        while not made:
            await asyncio.sleep(0)
        return made

    assert asyncio.run(asyncio.wait_for(work(), 60)) == [2]
