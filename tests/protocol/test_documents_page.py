"""The page of documents says what the code has, and the tables of the protocol lead to it."""

from __future__ import annotations

import re
from typing import Final

from tests.support import documents_page

PROTOCOL: Final = documents_page.PAGE.with_name("protocol.md")


def test_the_page_of_documents_has_the_fields_of_the_code() -> None:
    assert documents_page.PAGE.read_text("utf-8") == documents_page.written(), "run: python3 dev.py pages"


def test_a_field_has_its_type_its_unit_its_default_and_what_its_comment_says() -> None:
    page = documents_page.written()
    assert "| `topics` | list of [TopicConfig](#topicconfig) |  | required |" in page
    assert "| `read_queues` | integer | required |" in page
    assert "| `lease_ms` | integer | ms | `12000` |" in page
    assert "| `stored_from_us` | integer or null | µs since 1970 | `null` |" in page
    assert "| `timers` | list of text | absent |" in page
    assert "| `session_timeout_ms` | integer or null | ms | `null` | None: that of the broker." in page
    assert "| `expired` | Its time is over." in page


def test_every_document_in_a_table_of_the_protocol_is_a_link_to_its_fields() -> None:
    names = {document.__name__ for document in documents_page.titles()}
    rows = [row for row in PROTOCOL.read_text("utf-8").splitlines() if row.startswith("|")]
    assert [name for row in rows for name in re.findall(r"(?<!\[)`(\w+)`", row) if name in names] == []
    linked = re.findall(r"\[`(\w+)`\]\(documents\.md#", "\n".join(rows))
    assert len(linked) > 80
    assert set(linked) <= names
