"""The slots that number a producer's sends."""

from __future__ import annotations

import os

from rocketq.producing.attempts.send_slots import SendSlots
from rocketq.protocol.send_number import SendNumber, number_from


def test_sends_one_after_the_other_share_a_slot_and_count_upwards() -> None:
    slots = SendSlots()
    numbers = []
    for _ in range(3):
        slot = slots.take()
        numbers.append(slot.next())
        slots.release(slot)
    assert len({number.slot for number in numbers}) == 1
    assert [number.sequence for number in numbers] == [1, 2, 3]


def test_sends_at_the_same_time_have_slots_of_their_own() -> None:
    slots = SendSlots()
    taken = [slots.take() for _ in range(50)]
    assert len({slot.next().slot for slot in taken}) == 50
    for slot in taken:
        slots.release(slot)
    assert slots.take() is taken[-1], "the one that was used last"


def test_a_child_of_a_fork_never_uses_a_slot_of_its_parent() -> None:
    slots = SendSlots()
    own = slots.take()
    slots.release(own)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, slots.take().next().text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    other = number_from(os.read(receive, 100).decode())
    os.close(receive)
    os.close(send)
    assert other is not None
    assert other.slot != own.next().slot


def test_a_number_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    for number in (SendNumber(0, 0), SendNumber(2**63 - 1, 2**63 - 1)):
        assert number_from(number.text) == number
    bad = (
        "",
        "-",
        "1",
        "1-",
        "-1",
        "1-2-3",
        "1--2",
        "a-1",
        "1-b",
        " 1-2",
        "\u0661-1",
        f"{2**63}-1",
        f"1-{2**63}",
    )
    assert [text for text in bad if number_from(text) is not None] == []
