"""Staged sends: what turns a send into messages that nobody sees until their batch is decided.

    ?sink=S&batch=N&run=R&coordinator=B      all four, or none for an ordinary send

Everything else of a send (`send`) stays as it is: its limits, its permissions, its topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketq.errors import InvalidRequest
from rocketq.protocol.documents.broker import ARROW_STREAM, encode
from rocketq.protocol.documents.sinks import StagedAnswer, StageName
from rocketq_broker.data_plane.data_call import Answer, json_answer
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, whole_number
from rocketq_broker.store.sinks.decisions import check_stage_name
from rocketq_broker.store.store import StagedOutcome

STAGE_PARAMETERS: Final = frozenset({"sink", "batch", "run", "coordinator"})


def stage_of(parameters: Mapping[str, str], is_arrow: bool) -> StageName | None:
    """Return what a send is staged for, None if for nothing; raise InvalidRequest or InvalidName."""
    given = STAGE_PARAMETERS & parameters.keys()
    if not given:
        return None
    missing = sorted(STAGE_PARAMETERS - given)
    if missing:
        raise InvalidRequest(
            f"parameter {missing[0]}", "is required of a staged send",
            hint=f"Give all of {', '.join(sorted(STAGE_PARAMETERS))}, or none of them.",
        )  # fmt: skip
    if not is_arrow:
        raise InvalidRequest(
            "content-type", "staged messages are an Arrow stream", hint=f"Send {ARROW_STREAM}."
        )
    name = StageName(
        parameters["sink"],
        whole_number(parameters, "batch", 0, NUMBER_MAX),
        parameters["run"],
        parameters["coordinator"],
    )
    check_stage_name(name)
    return name


def staged_answer(outcome: StagedOutcome, broker: str, topic: str) -> Answer:
    """Return the answer that names each staged frame."""
    return json_answer(encode(StagedAnswer(outcome.status, broker, topic, outcome.staged)))
