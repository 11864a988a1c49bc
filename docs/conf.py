"""How `make docs` builds the site: these pages, and a reference made of the docstrings.

Sphinx makes it, MyST reads the Markdown pages, Furo is the theme. The site needs no network: its
search is a file beside the pages.
"""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "rocketq"
author = "the rocketq authors"
version = release = installed_version("rocketq")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Docstrings are plain text with `code`; types stand in the signature, as they do in the source.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"rocketq {release}"
html_copy_source = False
html_show_sourcelink = False
suppress_warnings = ["misc.highlighting_failure"]  # examples of JSON have "…" where something is left out


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _keep_indented_text)


def _keep_indented_text(
    app: Sphinx, what: str, name: str, object_: Any, options: Any, lines: list[str]
) -> None:
    """Show the indented parts of a docstring, its examples and tables, as they stand in the source."""
    shown: list[str] = []
    indented = False
    for line in lines:
        if line and line[0] != " ":
            indented = False
        elif line.strip() and not indented and (not shown or not shown[-1]):
            shown += ["::", ""]
            indented = True
        shown.append(line)
    lines[:] = shown
