"""Marks of dead letters: as a table against a set, and in a store that is killed at any moment.

A letter that was sent has its mark, and the other way round. That is looked at after each crash, also after
power cuts that take the newest appends with them.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rocketq.errors import Conflict
from rocketq.model import FlushMode
from rocketq_broker.store.machines.letter_table import MARKS_IN_A_BLOCK, LettersSent, LetterTable
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable
from rocketq_broker.store.state.state import Change, State
from tests.support.disk import Disk
from tests.support.lives import Lives
from tests.support.store_driver import answer, batch, config
from tests.support.workload import end_life

LETTERS = "%DLQ%billing"
OFFSETS = st.integers(0, 3 * MARKS_IN_A_BLOCK)


@given(calls=st.lists(st.lists(OFFSETS, min_size=1, max_size=20) | st.just([0, 1, 2, MARKS_IN_A_BLOCK - 1])))
def test_the_table_marks_what_a_set_has(calls: list[list[int]]) -> None:
    table, marked, topics = LetterTable(), set[int](), TopicTable()
    for offsets in calls:
        table = table.apply(LettersSent(LETTERS, tuple(offsets)), topics)
        marked.update(offsets)
    ranges = table.ranges(LETTERS)
    assert {offset for begin, end in ranges for offset in range(begin, end)} == marked
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert all(table.is_sent(LETTERS, offset) == (offset in marked) for offset in range(0, 3_000, 7))
    assert table.picture().table() == table
    assert not table.apply(TopicDeleted(LETTERS, 0), topics).ranges(LETTERS)
    assert table.apply(TopicDeleted("other", 0), topics) is table


class LettersAndModel(Lives):
    """`orders` has exactly the letters that are marked, each once."""

    @initialize(flush=st.sampled_from(list(FlushMode)), seed=st.integers(0, 1 << 32))
    def begin(self, flush: FlushMode, seed: int) -> None:
        self.disk, self.flush = Disk(seed), flush
        self.settings = config(flush=flush, segment_bytes=4096, open_files_max=8)
        self._start()
        self.driver.create(LETTERS, 1)
        self.driver.create("orders", 1)
        self.driver.store.flush()

    @property
    def letters(self) -> int:
        """How many letters there are: a power cut may have taken the newest."""
        return self.driver.ends(LETTERS)[0]

    @rule(count=st.integers(1, 5))
    def die(self, count: int) -> None:
        first = self.letters
        self.driver.send(LETTERS, 0, [b"%d" % (first + each) for each in range(count)])

    @precondition(lambda self: self.letters)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        offsets = sorted(data.draw(st.sets(st.integers(0, self.letters - 1), min_size=1, max_size=6)))
        store = self.driver.store
        is_new = not any(store.letters.is_sent(LETTERS, each) for each in offsets)

        def decide(state: State, at_ms: int) -> Change | None:
            if any(state.letters.is_sent(LETTERS, each) for each in offsets):
                raise Conflict("letters", "they were sent")
            return LettersSent(LETTERS, tuple(offsets))

        sent = [batch(0, [b"%d" % each for each in offsets])]
        write = partial(store.append, "orders", sent, decide=decide)
        if is_new:
            answer(write)
        else:
            with pytest.raises(Conflict):
                answer(write)

    @rule()
    def power_cut(self) -> None:
        """Without a flush before it: under async flush the newest appends are lost."""
        self.disk.cut_power()
        end_life(self.driver.store)
        self.disk.restart()
        self._start()

    @invariant()
    def what_was_sent_is_marked(self) -> None:
        if not hasattr(self, "driver"):
            return
        sent = [int(body) for body in self.driver.bodies("orders", 0)]
        marked = [
            each for begin, end in self.driver.store.letters.ranges(LETTERS) for each in range(begin, end)
        ]
        assert sorted(sent) == marked

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.store.close()


TestLettersAndModel = pytest.mark.timeout(300)(LettersAndModel.TestCase)
TestLettersAndModel.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
