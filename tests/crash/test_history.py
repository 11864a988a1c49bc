"""The checker itself: it passes what may be, and kills every mutant of it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest

from tests.support.crash_history import History, Message, check

Found = dict[int, list[tuple[int, Message]]]


def sound(seed: int = 1) -> tuple[History, Found, dict[int, int]]:
    """A run of three producers into two queues with all three fates, and what a right broker holds of it."""
    rng = random.Random(seed)
    history = History()
    found: Found = {0: [], 1: []}
    for number in range(60):
        for producer in ("p", "q", "r"):
            message, queue = Message(producer, number), rng.randrange(2)
            fate = rng.choice(("acked", "acked", "acked", "unknown", "gone", "refused"))
            if fate == "refused":
                history.refuse([message])
                continue
            if fate != "gone":
                found[queue].append((len(found[queue]), message))
            if fate == "acked":
                history.ack([message], queue, len(found[queue]) - 1)
            else:
                history.doubt([message], queue)
        if number == 30:
            history.observe(found)
    for queue in (0, 1):
        history.commit(queue, 3, acked=True)
        history.commit(queue, 9, acked=True)
        history.commit(queue, 12, acked=False)
    return history, found, {0: 9, 1: 12}


@pytest.mark.parametrize("seed", range(10))
def test_what_may_be_is_passed(seed: int) -> None:
    assert check(*sound(seed)) == []


def _renumbered(entries: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
    return [(offset, message) for offset, (_, message) in enumerate(entries)]


def _lose_the_last(history: History, found: Found, progress: dict[int, int]) -> None:
    for queue, entries in found.items():
        while entries[-1][1] not in history.acked:
            entries.pop()
        found[queue] = entries[:-1]


def _lose_one(history: History, found: Found, progress: dict[int, int]) -> None:
    acked = next(
        index for index, (_, message) in enumerate(found[0]) if message in history.acked and index > 40
    )
    found[0] = _renumbered(found[0][:acked] + found[0][acked + 1 :])


def _lose_one_and_leave_a_hole(history: History, found: Found, progress: dict[int, int]) -> None:
    unknown = next(index for index, (_, message) in enumerate(found[0]) if message in history.unknown)
    del found[0][unknown]
    for place in [place for place in history.read if place == (0, unknown)]:
        del history.read[place]


def _repeat_one_that_was_not_acked(history: History, found: Found, progress: dict[int, int]) -> None:
    unknown = next(message for _, message in found[0] if message in history.unknown)
    found[0].append((len(found[0]), Message("z", 0)))
    history.doubt([Message("z", 0)], 0)
    found[0].append((len(found[0]), Message("z", 0)))
    assert unknown != Message("z", 0)


def _repeat_one_in_another_queue(history: History, found: Found, progress: dict[int, int]) -> None:
    found[1].append((len(found[1]), found[0][5][1]))


def _store_what_was_refused(history: History, found: Found, progress: dict[int, int]) -> None:
    history.refuse([Message("z", 7)])
    found[1].append((len(found[1]), Message("z", 7)))


def _store_what_nobody_sent(history: History, found: Found, progress: dict[int, int]) -> None:
    found[1].append((len(found[1]), Message("stranger", 1)))


def _put_it_in_another_queue(history: History, found: Found, progress: dict[int, int]) -> None:
    history.doubt([Message("z", 0)], 0)
    found[1].append((len(found[1]), Message("z", 0)))


def _swap_two_that_were_not_acked(history: History, found: Found, progress: dict[int, int]) -> None:
    pair = [Message("z", 0), Message("z", 1)]
    history.doubt(pair, 0)
    found[0] += [(len(found[0]), pair[1]), (len(found[0]) + 1, pair[0])]


def _swap_two_acked_of_different_producers(history: History, found: Found, progress: dict[int, int]) -> None:
    for index in range(40, len(found[0]) - 1):
        (first, one), (second, other) = found[0][index : index + 2]
        if one in history.acked and other in history.acked and one.producer != other.producer:
            found[0][index : index + 2] = [(first, other), (second, one)]
            return
    raise AssertionError("no such pair")


def _forget_what_was_read(history: History, found: Found, progress: dict[int, int]) -> None:
    message = Message("z", 0)
    history.doubt([message], 0)
    history.observe({0: [(len(found[0]), message)]})


def _let_progress_go_back(history: History, found: Found, progress: dict[int, int]) -> None:
    progress[0] = 3


def _forget_progress(history: History, found: Found, progress: dict[int, int]) -> None:
    del progress[0]


def _invent_progress(history: History, found: Found, progress: dict[int, int]) -> None:
    progress[0] = 11


MUTANTS: list[tuple[Callable[[History, Found, dict[int, int]], None], str]] = [
    (_lose_the_last, "lost"),
    (_lose_one, "lost"),
    (_lose_one_and_leave_a_hole, "hole"),
    (_repeat_one_that_was_not_acked, "twice"),
    (_repeat_one_in_another_queue, "twice"),
    (_store_what_was_refused, "stranger"),
    (_store_what_nobody_sent, "stranger"),
    (_put_it_in_another_queue, "stranger"),
    (_swap_two_that_were_not_acked, "order"),
    (_swap_two_acked_of_different_producers, "lost"),
    (_forget_what_was_read, "changed"),
    (_let_progress_go_back, "progress"),
    (_forget_progress, "progress"),
    (_invent_progress, "progress"),
]


@pytest.mark.parametrize(("mutate", "kind"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS])
@pytest.mark.parametrize("seed", range(3))
def test_every_mutant_is_killed(
    mutate: Callable[[History, Found, dict[int, int]], None], kind: str, seed: int
) -> None:
    history, found, progress = copy.deepcopy(sound(seed))
    mutate(history, found, progress)
    assert kind in {violation.kind for violation in check(history, found, progress)}
