"""Members of group `billing` on one real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.broker.groups.scripted_member import GroupMember, close_all
from tests.support.http_client import Http

NewMember = Callable[..., GroupMember]


@pytest.fixture
def new_member(broker: Http) -> Iterator[NewMember]:
    """Make member number N; it has not joined yet."""
    made: list[GroupMember] = []

    def new(number: int, group: str = "billing") -> GroupMember:
        made.append(GroupMember(broker.address, number, group))
        return made[-1]

    yield new
    close_all(made)
