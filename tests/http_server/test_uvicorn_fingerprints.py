"""What HttpConnection overrides in uvicorn, and relies on there, is what it was when it was reviewed."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rocketq.http_server.connection.http_connection import HttpConnection

#: What HttpConnection calls, or stands in for (`SmallCall`), without overriding it.
RELIED_ON: dict[str, Any] = {
    "FlowControl": FlowControl,
    "RequestResponseCycle": RequestResponseCycle,
    "_start_asgi_task": vars(HttpToolsProtocol)["_start_asgi_task"],
    "on_url": HttpToolsProtocol.on_url,
}
#: Of uvicorn 0.54.0.
REVIEWED = {
    "FlowControl": "126debcdaa894c83",
    "RequestResponseCycle": "e67d470d435dcc1c",
    "__init__": "4f08999410347141",
    "_start_asgi_task": "9c08c2571ae9b038",
    "connection_lost": "c91a4c9bf2e29c55",
    "connection_made": "6efb565ff3d36b91",
    "data_received": "010a7ae59a5d3b1a",
    "on_body": "dba9c32aeba35b6a",
    "on_header": "65d62c044f61fdbd",
    "on_headers_complete": "1ea8589acfad92d8",
    "on_message_begin": "96d377fdc7c2baef",
    "on_message_complete": "1fbad42dc31fc01f",
    "on_response_complete": "64e254f28e389e76",
    "on_url": "37be44e962b04ca8",
    "pause_writing": "17a8fd215d96a13c",
    "resume_writing": "7844bbaa8cceb1ef",
    "shutdown": "d7351fa33f00d430",
}


def fingerprint(of: Any) -> str:
    return hashlib.sha256(inspect.getsource(of).encode()).hexdigest()[:16]


def test_what_is_overridden_in_uvicorn_is_what_was_reviewed() -> None:
    overridden = {
        name: getattr(HttpToolsProtocol, name)
        for name, value in vars(HttpConnection).items()
        if inspect.isfunction(value) and name in vars(HttpToolsProtocol)
    }
    found = {name: fingerprint(of) for name, of in sorted((overridden | RELIED_ON).items())}
    changed = sorted(name for name in found.keys() | REVIEWED.keys() if found.get(name) != REVIEWED.get(name))
    assert not changed, (
        f"uvicorn has other code than was reviewed for {', '.join(changed)}. Compare HttpToolsProtocol, "
        "RequestResponseCycle and FlowControl with the earlier version, and look at the methods of "
        "HttpConnection and the attributes of SmallCall of the same names. Then record these fingerprints "
        f"and move the bound of uvicorn in pyproject.toml: {found}"
    )
