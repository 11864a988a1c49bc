"""The audit log of a broker and a NameServer, and the vocabulary of all log lines."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from rocketq.http_server.audit import BODY_BYTES_MAX
from rocketq.http_server.runner import ServerThread
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from rocketq_nameserver.app import create_app as create_nameserver
from rocketq_nameserver.config import NameServerConfig
from tests.support.http_client import Http

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Http]:
    with ServerThread(create_app(BrokerConfig(name="broker-a", data_dir=tmp_path))) as server:
        yield Http(server.address)


def lines(logged: list[Any]) -> list[dict[str, Any]]:
    return [dict(each) for each in logged if each["event"] == "audit"]


def test_an_administrative_call_has_a_line_with_who_what_and_the_outcome(broker: Http) -> None:
    with capture_logs() as logged:
        created = broker.put("/v1/topics/orders", {"read_queues": 2, "write_queues": 2})
        broker.call("DELETE", "/v1/topics/orders")
    assert created.status == 201
    first, second = lines(logged)
    assert (first["act"], first["resource"], first["name"]) == ("create_topic", "topic", "orders")
    assert (first["status"], first["client"]) == (201, "127.0.0.1")
    assert '"read_queues"' in first["asked"]
    assert (second["act"], second["status"] // 100) == ("delete_topic", 2)


def test_a_refused_administrative_call_has_a_line_too(broker: Http) -> None:
    with capture_logs() as logged:
        missing = broker.call("DELETE", "/v1/topics/nothing")
        foreign = broker.call("DELETE", "/v1/topics/nothing", headers={"Origin": "http://evil.example"})
    assert [line["status"] for line in lines(logged)] == [missing.status, foreign.status] == [404, 403]


def test_messages_and_questions_have_no_line(broker: Http) -> None:
    broker.create("orders")
    with capture_logs() as logged:
        broker.call("GET", "/v1/topics/orders")
        broker.call("GET", "/v1/groups")
        broker.send_json("orders", {"body": "secret"}, query="?queue=0")
    assert lines(logged) == []


def test_a_long_body_is_cut(broker: Http) -> None:
    with capture_logs() as logged:
        broker.put("/v1/topics/orders", {"read_queues": 2, "write_queues": 2, "x": "y" * 10_000})
    (line,) = lines(logged)
    assert len(line["asked"]) == BODY_BYTES_MAX


def test_a_nameserver_has_an_audit_log_as_well() -> None:
    with ServerThread(create_nameserver(NameServerConfig())) as server, capture_logs() as logged:
        Http(server.address).put("/v1/brokers/broker-a/write-permission", {"writable": False})
    assert [line["act"] for line in lines(logged)] == ["write_permission"]


def events() -> Iterator[tuple[str, str]]:
    """Every name that servers log, with the file that logs it."""
    folders = ("broker_server", "nameserver", "connector/rocketq/http_server")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if "structlog" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"debug", "info", "warning", "error", "critical", "exception"}
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                yield str(node.args[0].value), path.name


def test_every_event_is_a_word_that_the_operations_page_explains() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = set(re.findall(r"^\| `([a-z_]+)` \| (?:info|warning|error|critical)", page, re.MULTILINE))
    logged = {name for name, _ in events()}
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in logged)
    assert logged == listed


LOGGING: Final = """
from rocketq.http_server.logs import configure_logging
import logging, structlog
configure_logging({level!r}, {form!r})
log = structlog.get_logger("rocketq")
log.debug("small"); log.info("usual", port=5); log.warning("large")
logging.getLogger("uvicorn.error").info("of a library")
try:
    raise RuntimeError("a defect")
except RuntimeError as error:
    log.error("failed", exc_info=error)
"""


def logged_by(level: str, form: str) -> str:
    script = LOGGING.format(level=level, form=form)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_text_is_for_people_and_levels_leave_lines_out() -> None:
    text = logged_by("info", "text")
    assert "small" not in text
    assert "usual" in text
    assert "port=5" in text
    assert "{" not in text
    assert "RuntimeError: a defect" in text
    assert "\x1b" not in text, "colour is for terminals"
    everything = logged_by("debug", "json").splitlines()
    assert '"event": "small"' in everything[0]
    assert any('"of a library"' in line for line in everything)
    assert [line for line in logged_by("error", "json").splitlines() if "failed" not in line] == []
