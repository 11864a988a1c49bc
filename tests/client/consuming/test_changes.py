"""The condition that wakes threads, and makes the calls that event loops asked for."""

from __future__ import annotations

from rocketq.consuming.fetching.changes import Changes


def change(changes: Changes) -> None:
    with changes:
        changes.notify_all()


def test_a_call_is_made_once_at_the_next_change() -> None:
    changes, calls = Changes(), []
    assert changes.call_after(changes.version, lambda: calls.append("a"))
    assert changes.call_after(changes.version, lambda: calls.append("b"))
    assert calls == []
    change(changes)
    change(changes)
    assert calls == ["a", "b"]


def test_a_call_after_a_change_that_was_not_seen_is_refused() -> None:
    changes, calls = Changes(), []
    version = changes.version
    change(changes)
    assert not changes.call_after(version, lambda: calls.append("a"))
    change(changes)
    assert calls == []
