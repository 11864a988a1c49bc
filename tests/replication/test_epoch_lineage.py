"""The lineage of a log against the log itself, frame by frame."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from rocketq_broker.epoch_lineage import EpochLineage, LogView
from rocketq_broker.replication.fetching import BeginsLater, Diverged, FetchPlace, Shipment, compared


class Frame(NamedTuple):
    end: int
    epoch: int


@st.composite
def logs(draw: st.DrawFn) -> list[Frame]:
    """Frames of some sizes; their epochs never fall."""
    frames, end, epoch = [], 0, 1
    for size, step in draw(
        st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 0, 1, 2])), max_size=20)
    ):
        end, epoch = end + size, epoch + step
        frames.append(Frame(end, epoch))
    return frames


def lineage_of(frames: list[Frame]) -> EpochLineage:
    made, start = EpochLineage(), 0
    for frame in frames:
        made = made.with_epoch(frame.epoch, start)
        start = frame.end
    return made


def epoch_before(frames: list[Frame], offset: int) -> int:
    return max((frame.epoch for frame in frames if frame.end <= offset), default=0)


@given(logs(), st.data())
def test_a_lineage_knows_the_epoch_of_each_frame_and_the_end_of_each_epoch(
    frames: list[Frame], data: st.DataObject
) -> None:
    lineage, end = lineage_of(frames), frames[-1].end if frames else 0
    for frame in frames:
        assert lineage.epoch_before(frame.end) == frame.epoch
        assert lineage.matches(frame.end, frame.epoch, end)
        assert not lineage.matches(frame.end, frame.epoch + 1, end)
    epoch = data.draw(st.integers(0, 50))
    assert lineage.end_of(epoch, end) == max((f.end for f in frames if f.epoch <= epoch), default=0)


@given(logs(), st.data())
def test_a_log_that_is_cut_or_begins_later_has_the_lineage_of_what_is_left(
    frames: list[Frame], data: st.DataObject
) -> None:
    places = [0, *(frame.end for frame in frames)]
    cut = data.draw(st.sampled_from(places))
    begin = data.draw(st.sampled_from([place for place in places if place <= cut]))
    left = [frame for frame in frames if frame.end <= cut]
    lineage = lineage_of(frames).truncated(cut).begun_at(begin)
    assert lineage == lineage_of(frames).begun_at(begin).truncated(cut)
    assert lineage.newest == epoch_before(frames, cut)
    for place in (place for place in places if begin <= place <= cut):
        assert lineage.epoch_before(place) == epoch_before(left, place)
    assert lineage.begin == begin
    grown = lineage.with_epoch(lineage.newest + 1, cut)
    assert grown.epoch_before(cut + 1) == lineage.newest + 1
    assert grown.epoch_before(cut) == lineage.newest


def test_an_epoch_without_a_frame_leaves_no_trace() -> None:
    assert EpochLineage().with_epoch(2, 0).with_epoch(5, 0).with_epoch(7, 9) == EpochLineage().with_epoch(
        5, 0
    ).with_epoch(7, 9)


MASTER = LogView(lineage_of([Frame(10, 1), Frame(20, 1), Frame(30, 3), Frame(40, 5)]).begun_at(10), 40, 40)


def place(end: int, last_epoch: int) -> FetchPlace:
    return FetchPlace(9, end, last_epoch)


def test_a_slave_whose_last_frame_is_the_masters_is_sent_what_follows() -> None:
    for end, epoch in [(10, 1), (20, 1), (30, 3), (40, 5)]:
        assert compared(place(end, epoch), MASTER, 30) == Shipment(place(end, epoch), 40, 30)


def test_a_slave_that_differs_is_told_where_its_epoch_ends_here() -> None:
    assert compared(place(50, 5), MASTER, 0) == Diverged(place(50, 5), 40, 5, 10, 1)
    assert compared(place(35, 4), MASTER, 0) == Diverged(place(35, 4), 30, 3, 10, 1)
    assert compared(place(25, 1), MASTER, 0) == Diverged(place(25, 1), 20, 1, 10, 1)


def test_a_slave_that_has_nothing_in_common_begins_at_the_masters_begin() -> None:
    assert compared(place(0, 0), MASTER, 0) == BeginsLater(place(0, 0), 10, 1)
    assert compared(place(25, 0), MASTER, 0) == BeginsLater(place(25, 0), 10, 1)
