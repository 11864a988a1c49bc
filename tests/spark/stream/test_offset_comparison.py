"""Progress: what a query makes of queues that join, brokers that leave, and messages that are gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketq.stream.offset import StreamOffset, batch_ranges
from pyspark_rocketq.stream.offset_comparison import compare, end_offset, lifted
from pyspark_rocketq.survey.subscription import Place, Survey
from rocketq.model import MessageQueue, QueueOffsets
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Transport

A0 = MessageQueue("t", "broker-a", 0)
A1 = MessageQueue("t", "broker-a", 1)
B0 = MessageQueue("t", "broker-b", 0)
A, B = ("t", "broker-a"), ("t", "broker-b")


def survey(
    ranges: dict, incarnations: dict | None = None, gone: dict | None = None, closed: dict | None = None
) -> Survey:
    places = {(queue.topic, queue.broker): "one" for queue in ranges}
    return Survey(
        {queue: QueueOffsets(*held) for queue, held in ranges.items()},
        incarnations or places,
        gone or {},
        {queue: QueueOffsets(*held) for queue, held in (closed or {}).items()},
    )


def at(positions: dict, incarnation: str = "one") -> StreamOffset:
    return StreamOffset(positions, {}, {(queue.topic, queue.broker): incarnation for queue in positions})


def test_a_known_queue_goes_on_where_it_stands() -> None:
    standing = compare(at({A0: 5}), survey({A0: (2, 9)}))
    assert standing.backlogs == {A0: (5, 9)}
    assert standing.waiting == 4
    assert not standing.joined
    assert not standing.losses


def test_a_slave_that_lags_is_no_loss_and_a_master_that_has_less_is_one() -> None:
    api = BrokerApi(Transport(), "broker-a", "http://127.0.0.1:1")
    for is_slave in (True, False):
        places = {A: Place("t", api, 1, is_slave=is_slave)}
        standing = compare(at({A0: 5}), lifted(survey({A0: (0, 3)}), places, at({A0: 5})))
        assert bool(standing.losses) is not is_slave
        assert standing.waiting == 0


def test_a_new_queue_is_read_from_its_first_message() -> None:
    standing = compare(at({A0: 5}), survey({A0: (0, 5), A1: (0, 3), B0: (10, 12)}))
    assert standing.backlogs == {A0: (5, 5), A1: (0, 3), B0: (10, 12)}
    assert standing.joined == {A1: 0, B0: 10}
    assert not standing.losses, "what was removed before a queue joined was never the query's"


def test_a_queue_whose_broker_is_away_stands_still() -> None:
    start = at({A0: 5, B0: 7})
    standing = compare(start, survey({A0: (0, 9)}))
    assert standing.backlogs == {A0: (5, 9), B0: (7, 7)}
    assert standing.still == {B0}
    assert not standing.losses
    end = end_offset(start, standing, {A0: 9, B0: 7})
    assert end.incarnations[B] == "one"
    assert end.positions[B0] == 7


def test_retention_past_the_query_is_a_loss() -> None:
    standing = compare(at({A0: 5}), survey({A0: (8, 9)}))
    assert [loss.facts["why"] for loss in standing.losses] == ["retention removed offsets 5 to 7"]
    assert standing.backlogs == {A0: (8, 9)}
    assert standing.joined == {A0: 8}


def test_a_broker_that_lost_its_end_is_a_loss() -> None:
    standing = compare(at({A0: 5}), survey({A0: (0, 3)}))
    assert "lost offsets 3 to 4" in standing.losses[0].message
    assert standing.backlogs == {A0: (3, 3)}


def test_a_topic_made_anew_is_a_loss_and_read_from_its_first_message() -> None:
    standing = compare(at({A0: 5}), survey({A0: (0, 9)}, {A: "two"}))
    assert "deleted and created again" in standing.losses[0].message
    assert standing.backlogs == {A0: (0, 9)}
    assert standing.joined == {A0: 0}
    assert standing.incarnations == {A: "two"}


def test_a_deleted_topic_is_a_loss_and_dropped() -> None:
    start = at({A0: 5, B0: 7})
    standing = compare(start, survey({B0: (0, 8)}, gone={A: "it was deleted"}))
    assert len(standing.losses) == 1
    assert standing.backlogs == {B0: (7, 8)}
    assert A not in standing.incarnations


def test_an_unread_queue_keeps_its_place_and_is_a_loss_while_not_empty() -> None:
    start = at({A0: 5, A1: 7})
    done = compare(start, survey({A0: (0, 5)}, closed={A1: (0, 7)}))
    assert (done.backlogs, done.losses) == ({A0: (5, 5), A1: (7, 7)}, ())
    unread = compare(start, survey({A0: (0, 5)}, closed={A1: (0, 9)}))
    assert "offsets 7 to 8 were not read" in unread.losses[0].message
    assert unread.backlogs == done.backlogs


def test_queues_that_the_new_topic_of_the_name_lacks_are_dropped() -> None:
    standing = compare(at({A0: 5, A1: 7}), survey({A0: (0, 2)}, {A: "two"}))
    assert standing.backlogs == {A0: (0, 2)}
    assert len(standing.losses) == 1


def test_the_first_batch_keeps_where_the_query_began() -> None:
    start = StreamOffset({A0: 5}, {A0: 5}, {A: "one"})
    end = end_offset(start, compare(start, survey({A0: (0, 9)})), {A0: 9})
    assert end.base == {A0: 5}
    later = end_offset(end, compare(end, survey({A0: (0, 12)})), {A0: 12})
    assert later.base == {}


queues = st.sampled_from([A0, A1, B0])
held = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: (min(pair), max(pair)))


@given(st.dictionaries(queues, st.integers(0, 20)), st.dictionaries(queues, held), st.booleans())
def test_whatever_happens_a_batch_can_be_planned_from_its_two_offsets(
    positions: dict, ranges: dict, initial: bool
) -> None:
    start = StreamOffset(positions, positions if initial else {}, {A: "one", B: "one"})
    standing = compare(start, survey(ranges, {A: "one", B: "two"}))
    ends = {queue: last for queue, (_, last) in standing.backlogs.items()}
    end = end_offset(start, standing, ends)
    planned = batch_ranges(start, end)
    assert planned == {queue: pair for queue, pair in standing.backlogs.items() if pair[0] < pair[1]}
    assert compare(end, survey(ranges, {A: "one", B: "two"})).waiting == 0
