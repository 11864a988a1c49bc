"""Refuses query parameters that a route does not know, or that are given twice.

FastAPI ignores unknown parameters, so a misspelt `wait_m` would seem to work. `known_parameters_only` is a
dependency of a whole app. It compares the query of each request with the parameters of its route.
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
