"""Learning at once that messages arrived, without asking the brokers all the time.

Spark asks an idle source for its latest offset about every 11 ms. Here each topic on each
broker is watched by one *held* request ("answer when the total exceeds N"), kept by a
thread of its own and left in place from one question of Spark's to the next. While the broker
holds the request, the known offsets are the newest, and nobody has to ask; when the broker answers,
Spark's waiting question continues at once.

    IDLE      no request is held, so the known offsets may be old: `refresh` asks
    HELD      the broker holds a request: the known offsets are the newest
    SUSPECT   the last call failed: asked again in the background, after a pause that
              grows, so that a dead broker delays nobody

More than HELD_MAX places are not held but asked each time; Spark's question then waits out
its `longPollMs` between two such rounds.

All threads are daemons: a process that ends does not wait for a held request.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from pyspark_rocketq.connections import TopicOnBroker
from pyspark_rocketq.survey.subscription import DENIED, PARALLEL_CALLS, Place, Places, Survey, survey_of
from rocketq.errors import RocketqError, TopicNotFound
from rocketq.protocol.documents.broker import TopicOffsets

HOLD_MS: Final = 20_000
HELD_MAX: Final = 64
SUSPECT_PAUSE_FIRST_S: Final = 0.2
SUSPECT_PAUSE_MAX_S: Final = 5.0


@dataclass(slots=True)
class _Watched:
    """One topic on one broker. All fields are guarded by the watch's lock."""

    place: Place
    known: TopicOffsets | None = None
    gone: bool = False
    #: A call is under way; `held` if it may hang at the broker.
    busy: bool = False
    held: bool = False
    error: RocketqError | None = None
    pause_s: float = SUSPECT_PAUSE_FIRST_S
    ask_again_at: float = field(default=0.0)


class OffsetWatch:
    """The newest known offsets of many places. Used by one thread; its helpers are its own."""

    def __init__(self) -> None:
        self._version = 0
        self._watched: dict[TopicOnBroker, _Watched] = {}
        self._changed = threading.Condition()
        self._closed = False

    def refresh(self, places: Places) -> None:
        """Make what is known current: ask every place that has no held request."""
        with self._changed:
            self._adopt(places)
            now = time.monotonic()
            asked = [one for one in self._watched.values() if not one.busy and one.error is None]
            suspects = [one for one in self._watched.values() if not one.busy and one.error is not None]
            due = [one for one in suspects if one.ask_again_at <= now]
            for one in [*asked, *due]:
                one.busy = True
        for one in due:
            self._start([one])
        if len(asked) == 1:
            self._ask(asked[0], 0)
            return
        for helper in range(min(PARALLEL_CALLS, len(asked))):
            self._start(asked[helper::PARALLEL_CALLS])
        with self._changed:
            # Each call has its own deadline, so this wait ends.
            self._changed.wait_for(lambda: self._closed or not any(one.busy for one in asked))

    def hold(self) -> None:
        """Leave a held request at every place that has none, as far as HELD_MAX goes."""
        with self._changed:
            held = sum(one.held for one in self._watched.values())
            idle = [
                one for one in self._watched.values()
                if not one.busy and one.error is None and one.known is not None
            ]  # fmt: skip
            chosen = idle[: max(0, HELD_MAX - held)]
            for one in chosen:
                one.busy = one.held = True
        for one in chosen:
            self._start([one], HOLD_MS)

    def wait(self, seen: int, wait_ms: int) -> None:
        """Wait until `version` differs from `seen`, at most `wait_ms`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._version != seen, wait_ms / 1000)

    @property
    def version(self) -> int:
        """Grows with every answer that brought something new."""
        with self._changed:
            return self._version

    def survey(self) -> Survey:
        """Return what is known of the places of the last `refresh`."""
        with self._changed:
            places = {key: one.place for key, one in self._watched.items()}
            # What a silent broker last said is not offered: its messages could not be read now.
            known = {
                key: one.known
                for key, one in self._watched.items()
                if one.known is not None and one.error is None
            }
            return survey_of(places, known, {key: DENIED for key, one in self._watched.items() if one.gone})

    def failures(self) -> dict[TopicOnBroker, str]:
        """Return the places that do not answer, and why."""
        with self._changed:
            return {key: one.error.message for key, one in self._watched.items() if one.error is not None}

    def close(self) -> None:
        """Let waiting threads go; held requests are left to the end of the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- inside ------------------------------------------------------------------

    def _adopt(self, places: Places) -> None:
        """Take over a new set of places; what is under way for a lost one ends unheard."""
        for key in self._watched.keys() - places.keys():
            del self._watched[key]
        for key, place in places.items():
            one = self._watched.get(key)
            if one is None:
                self._watched[key] = _Watched(place)
            elif one.place.broker.address != place.broker.address:
                # The broker moved: what hangs at the old address vouches for nothing.
                self._watched[key] = _Watched(place, one.known)
            else:
                one.place = place

    def _start(self, watched: list[_Watched], hold_ms: int = 0) -> None:
        def run() -> None:
            for one in watched:
                self._ask(one, hold_ms)

        threading.Thread(target=run, name="rocketq-watch", daemon=True).start()

    def _ask(self, one: _Watched, hold_ms: int) -> None:
        place = one.place
        after = one.known.total if hold_ms and one.known is not None else None
        try:
            answer = place.offsets(after, hold_ms)
        except TopicNotFound:
            with self._changed:
                self._end_call(one)
                one.gone, one.known = True, None
                self._version += 1
        except RocketqError as error:
            self._failed(one, error)
        else:
            with self._changed:
                self._end_call(one)
                if answer != one.known or one.error is not None:
                    self._version += 1
                one.gone, one.error, one.pause_s = False, None, SUSPECT_PAUSE_FIRST_S
                one.known = answer
        finally:
            if one.busy:
                # A defect, which this thread's end reports; nobody may wait for it.
                with self._changed:
                    self._end_call(one)

    def _end_call(self, one: _Watched) -> None:
        one.busy = one.held = False
        self._changed.notify_all()

    def _failed(self, one: _Watched, error: RocketqError) -> None:
        with self._changed:
            self._end_call(one)
            one.error = error
            one.ask_again_at = time.monotonic() + one.pause_s
            one.pause_s = min(2 * one.pause_s, SUSPECT_PAUSE_MAX_S)
