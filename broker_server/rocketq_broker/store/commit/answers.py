"""Making and giving the answers of a confirmed commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rocketq.errors import RocketqError
from rocketq_broker.store.commit.waiting_operations import ChangeState
from rocketq_broker.store.state.state import State


def answer_of(operation: ChangeState, state: State) -> Any:
    """Return the answer to an operation from the state it made, or the error that it raises."""
    try:
        return operation.answer(state)
    except RocketqError as error:
        return error


def call_all(calls: Sequence[tuple[Callable[[Any], None], Any]]) -> None:
    """Make every call, even if one of them raises; then raise the first error."""
    failure: BaseException | None = None
    for call, argument in calls:
        try:
            call(argument)
        except BaseException as error:  # noqa: BLE001  raised below
            failure = failure or error
    if failure is not None:
        raise failure
