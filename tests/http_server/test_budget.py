"""A budget of bytes: what is claimed is never more than the limit, and comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.errors import SystemBusy
from rocketq.http_server.byte_budget import ByteBudget, Claim


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from([None, 50, 80])), max_size=30))
def test_a_claim_has_room_up_to_its_mark_and_is_released(
    wanted: list[tuple[int, int | None]],
) -> None:
    budget = ByteBudget("bodies", 100, 100)
    claims = []
    for size, mark in wanted:
        before, claim = budget.used, Claim(budget, mark)
        if before + size <= (100 if mark is None else mark):
            claim.grow(size)
            claims.append(claim)
            assert budget.used == before + size
        else:
            with pytest.raises(SystemBusy):
                claim.grow(size)
            assert budget.used == before
    for claim in claims:
        claim.release()
        claim.release()
    assert budget.used == 0


def test_a_claim_that_could_not_grow_gives_back_what_it_had() -> None:
    budget = ByteBudget("bodies", 10, 100)
    with Claim(budget) as claim:
        claim.grow(8)
        with pytest.raises(SystemBusy, match="8 of at most 10 bytes of bodies"):
            claim.grow(8)
    assert budget.used == 0
