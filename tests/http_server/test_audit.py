"""The audit log of a broker and a NameServer, and the vocabulary of all log lines."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors.transaction_errors import TransactionDecidedOtherwise
from rocketq.http_server.audit import BODY_BYTES_MAX
from rocketq.http_server.runner import ServerThread
from rocketq.model import Message, TransactionState
from rocketq.testing import EmbeddedCluster
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from rocketq_nameserver.app import create_app as create_nameserver
from rocketq_nameserver.config import NameServerConfig
from tests.support.http_client import Http, stream

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


def test_a_cancelled_delayed_message_has_a_line(broker: Http) -> None:
    broker.create("orders")
    delayed = Message(b"x", properties={"TIMER_DELAY_MS": "3600000"})
    timer = broker.send("orders", stream([delayed]), "?queue=0").json["timers"][0]
    path = f"/v1/timers/{quote(timer, safe='')}"
    with capture_logs() as logged:
        broker.get(path)
        broker.call("DELETE", path)
        broker.call("DELETE", "/v1/timers/nothing")
    done, refused = lines(logged)
    assert (done["act"], done["resource"], done["name"]) == ("cancel_timer", "topic", "orders")
    assert (done["status"], done["path"]) == (200, f"/v1/timers/{timer}")
    assert refused["status"] == 404


def test_a_transaction_has_a_line_if_an_operator_decides_it(
    broker: Http,
) -> None:
    broker.create("orders")
    for name in ("by-hand", "by-producer"):
        query = f"?queue=0&transaction={name}&group=orders-tx&part=0"
        broker.send("orders", b"x", query, {"content-type": "application/octet-stream"})
    of_group = "/v1/groups/orders-tx/transactions"
    with capture_logs() as logged:
        broker.put(f"{of_group}/by-hand/outcome", {"state": "ROLLBACK"})
        broker.call("POST", f"{of_group}/by-producer/commit")
    (line,) = lines(logged)
    assert (line["act"], line["resource"], line["name"]) == ("decide_transaction", "group", "orders-tx")
    assert (line["status"], line["path"]) == (200, f"{of_group}/by-hand/outcome")
    assert line["asked"] == '{"state": "ROLLBACK"}'


def test_what_commands_and_the_console_decide_has_a_line() -> None:
    with EmbeddedCluster() as cluster, cluster.client() as mq, ClusterAdmin(cluster.nameservers) as admin:
        mq.create_topic("orders")
        with (
            mq.transactions("orders-tx", check=lambda _: TransactionState.UNKNOWN) as producer,
            pytest.raises(TransactionDecidedOtherwise),
            producer.transaction("orders", "a") as begun,
            capture_logs() as logged,
        ):
            admin.transactions.decide(begun.id, TransactionState.ROLLBACK)
    assert [line["act"] for line in lines(logged)] == ["decide_transaction"]


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
