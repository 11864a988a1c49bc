"""From a view's values to HTML: the templates, their filters and links.

Every value is escaped by the template engine (autoescape); the only exceptions are the tags that `formats`
makes. A name that is not given is an error (StrictUndefined), so a template with a wrong name fails its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2

from rocketq.console import bodies, formats
from rocketq.console.console import Page
from rocketq.model import StoredMessage

TEMPLATES: Final = Path(__file__).parent / "templates"

#: The entries of the menu: path, name, and the key that goes there after `g`.
MENU: Final = (
    ("/", "Overview", "o"),
    ("/topics", "Topics", "t"),
    ("/messages", "Messages", "m"),
    ("/groups", "Groups", "g"),
    ("/delayed", "Delayed", "d"),
    ("/transactions", "Transactions", "x"),
    ("/sinks", "Sinks", "s"),
    ("/brokers", "Brokers", "b"),
)


def link(*parts: object, **query: object) -> str:
    """Return a path of the console: each part quoted, and the query fields that are not None."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    fields = {name: str(value) for name, value in query.items() if value is not None}
    return path + (f"?{urlencode(fields)}" if fields else "")


def message_link(message: StoredMessage | str) -> str:
    """Return the page of a message, by its value or its id."""
    return link("message", id=message if isinstance(message, str) else message.message_id)


class Renderer:
    """Makes HTML of pages. Thread-safe."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._shared = dict(shared)
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Callable[..., object]] = {
            "count": formats.count,
            "size": formats.size,
            "rate": formats.rate,
            "byte_rate": formats.byte_rate,
            "duration": formats.duration,
            "preview": bodies.preview,
            "visible": bodies.visible,
            "body": bodies.body_view,
        }
        self._environment.filters |= filters
        self._environment.globals |= {
            "link": link,
            "message_link": message_link,
            "menu": MENU,
            "unknown": formats.UNKNOWN,
        }

    def html(self, page: Page, path: str, target: str, now_us: int) -> str:
        """Return the HTML of a page; `target` is the path with its query, `now_us` what times count from."""
        template = self._environment.get_template(page.template)
        return template.render(
            **self._shared,
            **page.values,
            page=page,
            path=path,
            target=target,
            now_us=now_us,
            when=partial(formats.moment, now_us=now_us),
        )
