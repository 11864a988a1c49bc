"""The page of documents says what the code has."""

from __future__ import annotations

from tests.support import documents_page


def test_the_page_of_documents_has_the_fields_of_the_code() -> None:
    assert documents_page.PAGE.read_text("utf-8") == documents_page.written(), "run: python3 dev.py pages"


def test_every_document_that_the_protocol_names_has_a_section() -> None:
    page = documents_page.written()
    for name in ("RegisterRequest", "TopicRoute", "SendAnswer", "CreateTopicRequest", "TopicConfig"):
        assert f"\n### {name}\n" in page
    assert "| `queue` | integer |  |" in page
