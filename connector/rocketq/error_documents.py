"""From a document that a server sent, or a pickled error, back to an error of its class.

Nothing here trusts the document: one that is strange gives a plainer error, never
an exception of its own, and never an error that is half made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

# Imported for their classes: `by_code` finds those that exist.
from rocketq import message_errors as message_errors
from rocketq import registration_errors as registration_errors
from rocketq import server_errors as server_errors
from rocketq import sink_errors as sink_errors
from rocketq import topic_errors as topic_errors
from rocketq.errors import JsonFacts, RemoteError, RocketqError, by_code

_FACT_TYPES: Final[Mapping[Any, type]] = {"int": int, "str": str}


def rebuild(cls: type[RocketqError], message: str, hint: str, facts: JsonFacts) -> RocketqError:
    """Make an error of `cls` from its facts, and with the sender's sentence.

    Facts that `cls` does not know (a newer sender's) are kept aside. If the others do
    not make one, it is the nearest class above whose errors have no attributes of
    their own, so that no error is ever half made.
    """
    try:
        error = cls(**_fitting(cls, facts))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError):
        plain: type[RocketqError] = next(
            c for c in cls.__mro__ if c is RocketqError or not inspect.get_annotations(c)
        )
        error = RocketqError.__new__(plain)
        RocketqError.__init__(error, message, hint=hint, facts=facts)
    error.message, error.hint, error.facts = message, hint, dict(facts)
    return error


def _fitting(cls: type[RocketqError], facts: JsonFacts) -> dict[str, Any]:
    """Return the facts that `cls` is made of; raise TypeError for one of the wrong type."""
    known = inspect.signature(cls.__init__).parameters
    fitting = {name: fact for name, fact in facts.items() if name in known}
    for name, fact in fitting.items():
        if not isinstance(fact, _FACT_TYPES.get(known[name].annotation, object)):
            raise TypeError(f"{name} is {fact!r}")
    return fitting


def from_document(document: Any, status: int) -> RocketqError:
    """Rebuild the error that a server sent; never raises on a strange document."""
    if not isinstance(document, dict) or not isinstance(document.get("code"), str):
        return RemoteError(
            f"The server answered HTTP {status} without an error document.", facts={"status": status}
        )
    code: str = document["code"]
    message, hint, facts = (document.get(name) for name in ("message", "hint", "facts"))
    facts = facts if isinstance(facts, dict) else {}
    cls = by_code().get(code)
    if cls is None:
        cls, facts = RemoteError, {**facts, "code": code, "status": status}
    return rebuild(
        cls, message if isinstance(message, str) else "", hint if isinstance(hint, str) else "", facts
    )
