"""The dead letters of a group: messages that have had their last attempt, and sending them again.

    letters = mq.dead_letters("billing")
    for letter in letters.list(topic="orders"):
        print(letter.letter_id, letter.attempts, letter.reason)
    letters.resend(letter.letter_id)            one
    letters.resend(topic="orders")              all of a topic that were not sent again yet

Each broker keeps the letters of its own messages, in a topic of the group. A letter that is sent again goes
to its original topic as a new message with the same unique id. It stays where it is and is marked, so the
same call made twice sends it once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec.structs import replace

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors import BrokerUnreachable, InvalidConfiguration, NotFound, TopicNotFound
from rocketq.message_query import PAGE_MESSAGES, Time, microseconds
from rocketq.model import MessageQueue, StoredMessage, message_id
from rocketq.net.broker_api import BrokerApi
from rocketq.net.retry import persist
from rocketq.protocol.documents.send_backs import (
    RESENT_LETTERS_MAX,
    DeadLetterMarks,
    ResendAnswer,
    ResendOutcome,
    ResendRequest,
    ResentLetter,
)
from rocketq.protocol.rules.reserved_names import check_user_group, dead_letter_topic
from rocketq.protocol.rules.retry_properties import REASON, RETURN_PROPERTIES, origin_of, place_of

log = logging.getLogger("rocketq.dead_letters")

#: How long a call is repeated whose answer was lost.
REPEAT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that has had its last attempt.

    `letter_id` names the letter, `message_id` the message as it was at first. `attempts` counts its attempts,
    `reason` is what its consumer said of the last one, `died_at_us` when that was (µs since 1970).
    `is_resent`: it was sent again. `properties` are the message's own.
    """

    letter_id: str
    topic: str
    message_id: str
    attempts: int
    reason: str | None
    died_at_us: int
    is_resent: bool
    unique_id: str | None
    key: bytes | None
    tag: str | None
    body: bytes
    properties: dict[str, str] = field(hash=False)
    born_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Resent:
    """What became of a letter that was to be sent again; `message_id` is that of the new message, if any."""

    letter_id: str
    outcome: ResendOutcome
    topic: str
    message_id: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant; None: all. `begin` and `end` bound when they died, both included."""

    topic: str | None = None
    tag: str | None = None
    key: bytes | None = None
    begin: Time | None = None
    end: Time | None = None
    resent: bool | None = None

    def admits(self, letter: DeadLetter) -> bool:
        wanted = (self.topic, self.tag, self.key, self.resent)
        found = (letter.topic, letter.tag, letter.key, letter.is_resent)
        return all(one is None or one == other for one, other in zip(wanted, found, strict=True))


class DeadLetters:
    """The dead letters of one group on every live master; made by `Client.dead_letters`. Thread-safe.

    >>> client.dead_letters("billing").count()
    {'broker-a': 0}

    Every method may raise BrokerUnreachable and NameServersUnreachable.
    """

    def __init__(self, masters: LiveMasters, group: str) -> None:
        check_user_group(group)
        self.group, self._topic, self._masters = group, dead_letter_topic(group), masters

    def count(self) -> dict[str, int]:
        """Return how many letters each broker has."""
        marks = (api.dead_letters(self.group) for api in self._masters.apis())
        return {each.broker: each.max - each.min for each in marks}

    def list(
        self,
        *,
        topic: str | None = None,
        tag: str | None = None,
        key: str | bytes | None = None,
        begin: Time | None = None,
        end: Time | None = None,
        resent: bool | None = None,
        page_messages: int = PAGE_MESSAGES,
    ) -> Iterator[DeadLetter]:
        """Yield the letters there are now, broker by broker, oldest first on each.

        `topic` is the original one, `begin` and `end` bound when they died, `resent` says whether they were
        sent again. Each broker is asked for `page_messages` at once, while letters are taken.
        """
        chosen = LetterFilter(topic, tag, key.encode() if isinstance(key, str) else key, begin, end, resent)
        return self._all(chosen, page_messages)

    def show(self, letter_id: str) -> DeadLetter:
        """Return one letter. Raises NotFound, and InvalidConfiguration for what is no letter of the group."""
        queue, _ = self._place(letter_id)
        api = self._masters.named(queue.broker)
        marks = api.dead_letters(self.group)
        message = api.message(letter_id).message(self._topic, api.broker)
        letter = letter_of(message, marks)
        if letter is None:
            raise NotFound("dead letter", letter_id)
        return letter

    def resend(
        self,
        letters: str | DeadLetter | Iterable[str | DeadLetter] | None = None,
        *,
        topic: str | None = None,
        tag: str | None = None,
        key: str | bytes | None = None,
        begin: Time | None = None,
        end: Time | None = None,
        again: bool = False,
        dry_run: bool = False,
    ) -> Sequence[Resent]:
        """Send letters to their original topics again; return what became of each, with `dry_run` would.

        `letters` are ids or letters; without them all that the filters of `list` admit. A letter that was
        sent before is sent only with `again`. A call whose answer is lost is repeated, and sends no letter
        twice; the new ids of its letters are then not known. With `again` it raises BrokerUnreachable.
        """
        chosen = LetterFilter(
            topic, tag, key.encode() if isinstance(key, str) else key, begin, end, None if again else False
        )
        if letters is None:
            places = [self._place(each.letter_id) for each in self._all(chosen, PAGE_MESSAGES)]
        elif chosen != LetterFilter(resent=chosen.resent):
            why = "given together with letters"
            raise InvalidConfiguration("filter", str(chosen), why, hint="Name letters, or filter them.")
        else:
            named = [letters] if isinstance(letters, str | DeadLetter) else letters
            ids = dict.fromkeys(each if isinstance(each, str) else each.letter_id for each in named)
            places = [self._place(each) for each in ids]
        by_broker: dict[str, list[int]] = {}
        for queue, offset in places:
            by_broker.setdefault(queue.broker, []).append(offset)
        found: list[Resent] = []
        for broker, offsets in sorted(by_broker.items()):
            api = self._masters.named(broker)
            for at in range(0, len(offsets), RESENT_LETTERS_MAX):
                some = tuple(offsets[at : at + RESENT_LETTERS_MAX])
                answer = self._answer(api, ResendRequest(some, again, dry_run))
                found += [self._resent(each, broker, answer.why) for each in answer.letters]
        return found

    def _answer(self, api: BrokerApi, request: ResendRequest) -> ResendAnswer:
        """Make a call; if its answer is lost make it again, which sends no letter a second time."""
        if request.again or request.dry_run:
            return api.resend_letters(self.group, request)
        before = api.dead_letters(self.group)
        try:
            return api.resend_letters(self.group, request)
        except BrokerUnreachable as error:
            if not error.sent:
                raise
            log.warning("Sending dead letters again: %s The call is repeated.", error.message)
        answer = persist(partial(api.resend_letters, self.group, request), "Dead letters", REPEAT_MS)
        letters = (
            replace(each, outcome=ResendOutcome.SENT)
            if each.outcome is ResendOutcome.SENT_BEFORE and not is_marked(before, each.offset)
            else each
            for each in answer.letters
        )
        return replace(answer, letters=tuple(letters))

    # --- inside --------------------------------------------------------------------

    def _place(self, letter_id: str) -> tuple[MessageQueue, int]:
        place = place_of(letter_id)
        if place is None or place[0].topic != self._topic:
            raise InvalidConfiguration(
                "letter_id", letter_id[:200], f"it is no dead letter of group {self.group}",
                hint=f"The ids are BROKER:{self._topic}:0:OFFSET; see rocketq dlq list {self.group}.",
            )  # fmt: skip
        return place

    def _resent(self, each: ResentLetter, broker: str, why: str) -> Resent:
        sent = None
        if each.queue is not None and each.offset_sent is not None:
            sent = message_id(MessageQueue(each.topic, broker, each.queue), each.offset_sent)
        letter_id = message_id(MessageQueue(self._topic, broker, 0), each.offset)
        told = why if each.outcome is ResendOutcome.FAILED else ""
        return Resent(letter_id, each.outcome, each.topic, sent, told)

    def _all(self, chosen: LetterFilter, page_messages: int) -> Iterator[DeadLetter]:
        for api in self._masters.apis():
            marks = api.dead_letters(self.group)
            for message in _messages(api, self._topic, chosen, page_messages):
                if message.offset >= marks.max:
                    # Letters that came since: those that fail again at once would never end.
                    break
                letter = letter_of(message, marks)
                if letter is not None and chosen.admits(letter):
                    yield letter


def _messages(api: BrokerApi, topic: str, chosen: LetterFilter, limit: int) -> Iterator[StoredMessage]:
    begin_us = 0 if chosen.begin is None else microseconds("begin", chosen.begin)
    end_us = None if chosen.end is None else microseconds("end", chosen.end)
    page: str | None = None
    while True:
        try:
            answer = api.query_by_time(topic, begin_us=begin_us, end_us=end_us, limit=limit, page=page)
        except TopicNotFound:
            # No message of the group has died on this broker.
            return
        for document in answer.messages:
            yield document.message(topic, api.broker)
        page = answer.next_page
        if page is None:
            return


def is_marked(marks: DeadLetterMarks, offset: int) -> bool:
    """Whether the letter at an offset was sent again."""
    return any(each.begin <= offset < each.end for each in marks.resent)


def letter_of(message: StoredMessage, marks: DeadLetterMarks) -> DeadLetter | None:
    """Return a message of a dead letter topic as a letter; None if it says nothing of its origin."""
    properties: Mapping[str, str] = message.properties or {}
    origin = origin_of(properties)
    if origin is None:
        return None
    is_resent = is_marked(marks, message.offset)
    return DeadLetter(
        message.message_id, origin.queue.topic, message_id(origin.queue, origin.offset), origin.failures,
        properties.get(REASON), message.stored_at_us, is_resent, message.unique_id, message.key, message.tag,
        message.body, {name: v for name, v in properties.items() if name not in RETURN_PROPERTIES},
        message.born_at_us,
    )  # fmt: skip
