"""A query parameter that no route knows is an error, never ignored.

FastAPI ignores it, and then a misspelt `wait_m` would look as if it worked. As a
dependency of a whole app, `known_parameters_only` holds the query of each
request against what its route takes.
"""

from __future__ import annotations

from fastapi import Request

from rocketq.errors import InvalidRequest


async def known_parameters_only(request: Request) -> None:
    """Raise InvalidRequest for a parameter that is unknown or given twice."""
    if not request.scope["query_string"]:
        return
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    seen = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidRequest("the query", f"unknown parameter {name[:100]!r}", hint=f"Known: {listed}.")
        if name in seen:
            raise InvalidRequest(f"parameter {name}", "is given twice")
        seen.add(name)
