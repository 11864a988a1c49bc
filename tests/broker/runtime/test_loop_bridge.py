"""Outcomes that cross from other threads to the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rocketq.errors import SystemBusy
from rocketq_broker.runtime.loop_bridge import Completions


def test_calls_from_many_threads_are_all_made_each_thread_s_in_order() -> None:
    threads, each = 8, 5_000
    made: list[tuple[int, int]] = []

    async def run() -> None:
        completions = Completions(asyncio.get_running_loop())
        everything = asyncio.Event()

        def note(call: tuple[int, int]) -> None:
            made.append(call)
            if len(made) == threads * each:
                everything.set()

        def post(number: int) -> None:
            for at in range(each):
                completions.post(note, (number, at))

        workers = [threading.Thread(target=post, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        await everything.wait()
        for worker in workers:
            worker.join()

    asyncio.run(run())
    for number in range(threads):
        assert [at for who, at in made if who == number] == list(range(each))


def fail(_: object) -> None:
    raise ZeroDivisionError


def test_a_defect_in_one_call_does_not_keep_the_others() -> None:
    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        reported: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        completions = Completions(loop)
        made: list[int] = []
        done = asyncio.Event()
        completions.post(made.append, 1)
        completions.post(fail, None)
        completions.post(made.append, 2)
        completions.post(lambda _: done.set(), None)
        await done.wait()
        assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]
        return made

    assert asyncio.run(run()) == [1, 2]


def test_an_error_as_outcome_is_raised_where_it_is_waited_for() -> None:
    def write(done: Callable[[Any], None], outcome: Any) -> None:
        threading.Thread(target=done, args=(outcome,)).start()

    async def run() -> None:
        completions = Completions(asyncio.get_running_loop())
        assert await completions.outcome(partial(write, outcome="stored")) == "stored"
        with pytest.raises(SystemBusy):
            await completions.outcome(partial(write, outcome=SystemBusy("full", 10)))

    asyncio.run(run())
