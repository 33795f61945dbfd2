"""How Sphinx builds the documentation."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
import zlib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

# It tells of each plugin that it sets up.
logging.getLogger("alembic").setLevel(logging.WARNING)

project = "sqla_tickets"
author = "The sqla_tickets authors"
release = importlib.metadata.version("sqla-tickets")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
# What the benchmarks and the simulation write is included by other pages.
exclude_patterns = [
    "_build",
    "understand/performance/*.md",
    "understand/scale/*.md",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "sqla_tickets"
html_static_path = ["static"]
# A picture's colours follow the page's theme, whose switch says it to no picture.
html_css_files = ["theme.css"]

# Extras, which a build of these pages need not have.
autodoc_mock_imports = ["opentelemetry", "prometheus_client"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

# Links into other projects' pages. What is linked to is listed in `inventories`, so that a build needs no network;
# TICKETS_DOCS_ONLINE=1 takes their whole lists, and tells whether a name is still theirs.
SITES = {
    "python": "https://docs.python.org/3",
    "sqlalchemy": "https://docs.sqlalchemy.org/en/21",
    "alembic": "https://alembic.sqlalchemy.org/en/latest",
}


def inventory(project: str) -> str | None:
    """Write a project's list as Sphinx reads it, and return where; None for the one online."""
    if os.environ.get("TICKETS_DOCS_ONLINE"):
        return None
    here = Path(__file__).parent
    listed = (here / "inventories" / f"{project}.txt").read_bytes()
    file = here / "_build" / "inventories" / f"{project}.inv"
    file.parent.mkdir(parents=True, exist_ok=True)
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version:\n# zlib\n"
    file.write_bytes(head.encode() + zlib.compress(listed))
    return str(file)


intersphinx_mapping = {project: (site, inventory(project)) for project, site in SITES.items()}


#: Users are given these, and construct none.
NOT_CONSTRUCTED = {"sqla_tickets.TicketServer"}


def signature_of_class(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    result: str | None,
) -> tuple[str | None, str | None]:
    """The signature that a class has; Sphinx sees the one of a base class written in C, or of a `__new__`."""
    if name in NOT_CONSTRUCTED:
        return "", result
    if what == "class" and signature == "(*args, **kwargs)":
        return stringify_signature(inspect.signature(obj), show_annotation=False), result
    return signature, result


def first_line_only(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Leaves out how a class that users do not construct is constructed."""
    if name in NOT_CONSTRUCTED:
        del lines[1:]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", signature_of_class)
    app.connect("autodoc-process-docstring", first_line_only)
