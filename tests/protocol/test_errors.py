from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq import errors
from rocketq.errors import (
    BrokerUnreachable,
    CorruptFrame,
    InvalidBatch,
    NoPermission,
    OffsetOutOfRange,
    RemoteError,
    RocketqError,
    SystemBusy,
)
from rocketq.errors.documents import from_document
from rocketq.protocol.documents.broker import decode, encode

if importlib.util.find_spec("rocketq_broker.store.errors"):
    importlib.import_module("rocketq_broker.store.errors")

ABSTRACT = {RocketqError, errors.ClientError, errors.RemoteError}
VALUES: dict[str, Any] = {
    "str": "some text, größer",
    "int": 41,
    "bool": False,
    "float": 0.5,
    "Any": "a value",
    "list[str]": ["first", "second"],
    "Mapping[str, str]": {"http://one": "refused", "http://two": "timed out"},
    "Mapping[str, int]": {"broker-a/2": 3, "broker-b/7": 500},
    "Mapping[str, Sequence[str]]": {"spark": ["pyspark", "pandas"]},
    "Mapping[str, Sequence[int]]": {"orders": [3, 4]},
    "Sequence[Mapping[str, Any]]": [
        {
            **{"topic": "orders", "queue": 1, "epoch": 3, "owner": "10.0.0.2@7", "owner_epoch": 4},
            **{"receipt_handle": "broker-a:orders:1:7:3", "reason": "expired"},
        }
    ],
    "str | None": None,
    "int | None": 7,
    "Path": "/data",
    "Path | str": "/data",
    "str | Path": "/data",
    "JsonFacts | None": None,
}


def tree(cls: type[RocketqError] = RocketqError) -> list[type[RocketqError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in tree(child))]


#: Those of the client library and the servers: others come with what else the session has imported.
CONCRETE = [
    cls
    for cls in tree()
    if cls.__module__.startswith("rocketq.") and cls not in ABSTRACT and "__init__" in cls.__dict__
]


def example(cls: type[RocketqError]) -> RocketqError:
    """An error made of one value for each argument of its class."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return cls(**{p.name: VALUES[str(p.annotation)] for p in parameters})


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.__name__)
def test_an_error_crosses_the_wire_as_itself(cls: type[RocketqError]) -> None:
    sent = example(cls)
    received = from_document(decode(encode(sent.document()), dict[str, Any]), cls.status)
    assert type(received) is cls
    assert vars(received) == vars(sent)
    assert str(received) == str(sent)
    assert (received.code, received.status, received.retryable) == (sent.code, sent.status, sent.retryable)


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.__name__)
def test_an_error_crosses_processes_as_itself(cls: type[RocketqError]) -> None:
    sent = example(cls)
    for received in (pickle.loads(pickle.dumps(sent)), copy.copy(sent)):
        assert type(received) is cls
        assert vars(received) == vars(sent)
        assert str(received) == str(sent)


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.__name__)
def test_an_error_says_what_is_wrong_and_carries_its_facts(cls: type[RocketqError]) -> None:
    error = example(cls)
    assert error.message
    assert error.facts
    assert str(error).startswith(error.message)


def test_every_class_has_a_code_of_its_own_and_every_code_one_class() -> None:
    codes = [cls.code for cls in CONCRETE]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[A-Z][A-Z_]+", code) for code in codes)
    known = errors.by_code()
    assert {code: known[code] for code in codes} == dict(zip(codes, CONCRETE, strict=True))


def test_codes_and_statuses_are_those_drawn_in_the_tree() -> None:
    drawn = {
        name: (code, int(status) if status else None)
        for name, code, status in re.findall(r"── (\w+) +([A-Z_]+)(?: +(\d{3}))?", errors.__doc__ or "")
    }
    ours = [cls for cls in CONCRETE if cls.__module__.startswith("rocketq.errors.")]
    assert drawn.keys() == {cls.__name__ for cls in ours}
    for cls in ours:
        code, status = drawn[cls.__name__]
        assert (cls.code, cls.status) == (code, status or cls.status)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CODES = st.sampled_from([cls.code for cls in CONCRETE]) | st.text(max_size=10)
FACT_NAMES = st.sampled_from(
    sorted({name for cls in CONCRETE for name in inspect.signature(cls.__init__).parameters})
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "code": CODES | JSON_VALUES,
            "message": JSON_VALUES,
            "hint": JSON_VALUES,
            "facts": JSON_VALUES | st.dictionaries(FACT_NAMES, JSON_VALUES, max_size=8),
        },
    )
    | JSON_VALUES,
    st.integers(100, 599),
)
def test_a_strange_document_still_becomes_an_error_of_the_tree(document: Any, status: int) -> None:
    error = from_document(document, status)
    assert isinstance(error, RocketqError)
    str(error)
    for cls in type(error).__mro__:
        if issubclass(cls, RocketqError) and cls is not RocketqError:
            for name, kind in inspect.get_annotations(cls).items():
                assert type(getattr(error, name)).__name__ == kind, "an error is never half made"


def test_a_fact_that_a_newer_server_adds_is_kept_and_does_no_harm() -> None:
    document = OffsetOutOfRange("orders", "broker-a", 1, 5, 10, 20).document()
    document["facts"]["tiered_min"] = 3
    error = from_document(document, 416)
    assert isinstance(error, OffsetOutOfRange)
    assert error.corrected == 10
    assert error.facts["tiered_min"] == 3


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("OFFSET_OUT_OF_RANGE", {"topic": "t"}),
        ("OFFSET_OUT_OF_RANGE", OffsetOutOfRange("t", "b", 1, 5, 10, 20).facts | {"min": "10"}),
        ("SYSTEM_BUSY", {"why": "full"}),
        ("BROKER_UNREACHABLE", {}),
    ],
)
def test_an_error_without_the_facts_it_is_made_of_is_one_of_the_class_above(
    code: str, facts: dict[str, Any]
) -> None:
    error = from_document({"code": code, "message": "Sentence.", "hint": "Do.", "facts": facts}, 400)
    assert not isinstance(error, (OffsetOutOfRange, SystemBusy, BrokerUnreachable, CorruptFrame))
    assert str(error) == "Sentence. Do."
    assert error.facts == facts


def test_an_error_of_a_plain_class_keeps_its_class_whatever_its_facts() -> None:
    assert type(from_document({"code": "INVALID_BATCH", "facts": {"other": 1}}, 400)) is InvalidBatch
    assert type(from_document({"code": "NO_PERMISSION"}, 403)) is NoPermission


def test_a_code_of_a_newer_server_is_kept_in_the_facts() -> None:
    error = from_document({"code": "QUOTA_SPENT", "message": "No quota.", "facts": {"left": 0}}, 429)
    assert type(error) is RemoteError
    assert error.facts == {"code": "QUOTA_SPENT", "status": 429, "left": 0}
    assert str(error) == "No quota."


@pytest.mark.parametrize("document", [None, [], "x", {}, {"code": 5}, {"message": "no code"}])
def test_an_answer_without_an_error_document_says_its_status(document: Any) -> None:
    error = from_document(document, 502)
    assert type(error) is RemoteError
    assert "502" in str(error)
