"""How Sphinx builds the documentation."""

from __future__ import annotations

import importlib.metadata
import os

project = "sqla_tickets"
author = "The sqla_tickets authors"
release = importlib.metadata.version("sqla-tickets")
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
# What the benchmarks write is included by performance.md.
exclude_patterns = ["_build", "performance/*.md"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "sqla_tickets"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

# Links into other projects' pages need the network: TICKETS_DOCS_ONLINE=1 turns them on.
if os.environ.get("TICKETS_DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "sqlalchemy": ("https://docs.sqlalchemy.org/en/21", None),
        "alembic": ("https://alembic.sqlalchemy.org/en/latest", None),
    }
