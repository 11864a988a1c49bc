"""The OpenAPI documents of both servers are valid: the contract in 3.1, and what Swagger UI reads in 3.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from openapi_spec_validator import OpenAPIV30SpecValidator, OpenAPIV31SpecValidator

from rocketq.http_server.runner import ServerThread
from rocketq_broker.app import BrokerApp
from rocketq_broker.app import create_app as create_broker
from rocketq_broker.config import BrokerConfig
from rocketq_nameserver.app import NameServerApp
from rocketq_nameserver.app import create_app as create_nameserver
from rocketq_nameserver.config import NameServerConfig
from tests.support.http_client import Http


@pytest.fixture(params=["broker", "nameserver"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerApp | NameServerApp:
    if request.param == "nameserver":
        return create_nameserver(NameServerConfig())
    return create_broker(BrokerConfig(name="broker-a", data_dir=tmp_path, port=0))


def problems(validator: Any, document: Any) -> list[str]:
    return [error.message for error in validator(document).iter_errors()]


def test_both_documents_are_valid(app: BrokerApp | NameServerApp) -> None:
    with ServerThread(app) as server:
        http = Http(server.address)
        contract, for_page = http.get("/openapi.json").json, http.get("/docs/openapi.json").json
        assert '"/docs/openapi.json"' in http.get("/docs/start.js").body.decode()
    assert (contract["openapi"], for_page["openapi"]) == ("3.1.0", "3.0.3")
    assert problems(OpenAPIV31SpecValidator, contract) == []
    assert problems(OpenAPIV30SpecValidator, for_page) == []
    assert contract["paths"].keys() == for_page["paths"].keys()


def test_the_validator_finds_what_was_wrong_once() -> None:
    app = FastAPI()
    document = app.openapi()
    schema = {"type": "integer", "exclusiveMaximum": True}
    parameter = {"name": "since", "in": "query", "schema": schema}
    document["paths"]["/"] = {"get": {"parameters": [parameter], "responses": {}}}
    assert problems(OpenAPIV31SpecValidator, document)


def test_a_part_of_the_page_is_sent_whole_whatever_range_is_asked_for(app: BrokerApp | NameServerApp) -> None:
    with ServerThread(app) as server:
        answer = Http(server.address).call("GET", "/docs/swagger-ui.css", headers={"range": "bytes=x-"})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/css")
