"""From a document that a server sent back to an error of its class.

Nothing here trusts the document: one that is strange gives a plainer error, never
an exception of its own, and never an error that is half made.
"""

from __future__ import annotations

from typing import Any

from rocketq.errors.base import RemoteError, RocketqError, by_code, rebuild


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
