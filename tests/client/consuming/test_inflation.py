"""What a pull inflates to is bounded, whatever a producer made of it."""

from __future__ import annotations

from rocketq import LocalCluster
from rocketq.model import Message, PullStatus
from rocketq.net.pulled import Pulled
from rocketq.protocol.message_schema import from_messages
from tests.protocol.strategies import messages_frame
from tests.support.patience import PatientClient

MIB = 1 << 20


def pulled(*sizes: int) -> Pulled:
    """An answer of one compressed frame for each body, at offsets 10, 11, …"""
    frames = [
        messages_frame(from_messages([Message(bytes(size))]), 10 + index, codec="zstd")
        for index, size in enumerate(sizes)
    ]
    return Pulled(PullStatus.FOUND, 10, 10 + len(sizes), 0, 10 + len(sizes), "i", b"".join(frames))


def test_opening_stops_before_a_frame_that_is_too_large() -> None:
    answer = pulled(MIB, MIB, MIB, MIB)
    assert len(answer.body) < 10_000
    slices, next_offset = answer.bounded_slices(2 * MIB + 10_000)
    assert [piece.offset for piece in slices] == [10, 11]
    assert next_offset == 12


def test_the_first_frame_is_opened_however_large_it_is() -> None:
    slices, next_offset = pulled(MIB, 1).bounded_slices(1000)
    assert [piece.offset for piece in slices] == [10]
    assert next_offset == 11


def test_an_answer_within_the_bound_is_taken_whole() -> None:
    slices, next_offset = pulled(1, 2, 3).bounded_slices()
    assert len(slices) == 3
    assert next_offset == 13


def test_a_consumer_reads_on_where_a_bound_made_it_stop(cluster: LocalCluster, topic: str) -> None:
    with PatientClient(cluster.nameservers) as client:
        client.create_topic(topic, queues=1)
        [queue, *_] = client.route(topic).write_queues()
        with client.producer() as producer:
            for number in range(5):
                body = bytes([number]) * (4 * MIB - 1000)
                batch = from_messages([Message(body)] * 5)
                producer.send_batch(topic, batch, queue=queue, compression="zstd")
        got: list[int] = []
        with client.pull_consumer([topic], start="earliest") as consumer:
            while len(got) < 25:
                messages = consumer.poll(max_messages=2, timeout_ms=60_000)
                assert messages, f"only {len(got)} messages came"
                got += [message.body[0] for message in messages]
                assert all(len(message.body) == 4 * MIB - 1000 for message in messages)
        assert got == [number for number in range(5) for _ in range(5)]
