"""Which waiting calls a change wakes, and which have waited long enough."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketq_nameserver.watch import TOPIC_LIST, Watch, Watches


def held(watches: Watches[str], subject: str, deadline_ms: int, waiter: str) -> Watch[str]:
    watch = watches.hold(subject, deadline_ms, waiter)
    assert watch is not None
    return watch


def waiters(found: list[Watch[str]]) -> list[str]:
    return sorted(watch.waiter for watch in found)


def test_a_change_wakes_those_who_watch_it_and_nobody_else() -> None:
    watches: Watches[str] = Watches(10)
    held(watches, "orders", 100, "first")
    held(watches, "orders", 200, "second")
    held(watches, "bills", 100, "other")
    held(watches, TOPIC_LIST, 100, "list")
    assert waiters(watches.changed(["orders", "unknown"])) == ["first", "second"]
    assert waiters(watches.changed([TOPIC_LIST])) == ["list"]
    assert watches.changed(["orders"]) == []
    assert len(watches) == 1


def test_a_watch_expires_at_its_deadline_and_not_before() -> None:
    watches: Watches[str] = Watches(10)
    held(watches, "orders", 100, "early")
    held(watches, "orders", 200, "late")
    assert watches.expired(99) == []
    assert watches.next_deadline_ms() == 100
    assert waiters(watches.expired(100)) == ["early"]
    assert watches.next_deadline_ms() == 200
    assert waiters(watches.expired(1_000)) == ["late"]
    assert watches.next_deadline_ms() is None


def test_no_more_are_held_than_there_are_places() -> None:
    watches: Watches[str] = Watches(2)
    first = held(watches, "orders", 100, "first")
    held(watches, "orders", 100, "second")
    assert watches.hold("orders", 100, "third") is None
    assert watches.end(first)
    assert not watches.end(first)
    assert watches.hold("orders", 100, "third") is not None


def test_after_a_release_of_all_nothing_is_held() -> None:
    watches: Watches[str] = Watches(10)
    held(watches, "orders", 100, "first")
    held(watches, "bills", 100, "second")
    assert waiters(watches.release_all()) == ["first", "second"]
    assert watches.closed
    assert watches.hold("orders", 100, "third") is None
    assert watches.expired(1_000) == []


def test_calls_that_end_early_do_not_pile_up() -> None:
    watches: Watches[str] = Watches(10)
    for _ in range(50_000):
        watches.end(held(watches, "orders", 60_000, "short"))
    assert len(watches._heap) < 2_000


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.sampled_from(["a", "b"]), st.integers(0, 50)),
            st.tuples(st.just("changed"), st.sampled_from(["a", "b"]), st.just(0)),
            st.tuples(st.just("expired"), st.just(""), st.integers(0, 50)),
        )
    )
)
def test_every_held_call_is_handed_back_exactly_once(steps: list[tuple[str, str, int]]) -> None:
    watches: Watches[str] = Watches(1_000)
    waiting: dict[str, tuple[str, int]] = {}
    for number, (step, subject, at) in enumerate(steps):
        if step == "hold":
            held(watches, subject, at, str(number))
            waiting[str(number)] = (subject, at)
            continue
        if step == "changed":
            found = watches.changed([subject])
            due = {waiter for waiter, (watched, _) in waiting.items() if watched == subject}
        else:
            found = watches.expired(at)
            due = {waiter for waiter, (_, deadline) in waiting.items() if deadline <= at}
        assert waiters(found) == sorted(due)
        for waiter in due:
            del waiting[waiter]
        assert len(watches) == len(waiting)
        assert watches.next_deadline_ms() == min((at for _, at in waiting.values()), default=None)
