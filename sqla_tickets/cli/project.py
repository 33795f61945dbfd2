"""The edits that a project's migrations need: ``alembic.ini`` or ``pyproject.toml``, ``env.py``, ``script.py.mako``.

Each edit takes a file's text and returns the new text, so that the difference can be shown before anything is
written. An edit that is already there is skipped, so a second run changes nothing.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import alembic
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

import alembic_ext

from .. import TicketArgumentError
from .config import read_config

#: The folder for ``alembic init -t``.
TEMPLATE: Final = Path(alembic_ext.__file__).parent / "templates" / "tickets"
PLUGIN: Final = "sqla_tickets"
PLUGINS: Final = f'autogenerate_plugins=["alembic.autogenerate.*", "{PLUGIN}"]'
#: The placeholder URLs in the files of `alembic init`.
_UNSET: Final = "driver://user:pass@"
_IMPORTS_OF_LOOP: Final = (
    "import logging\n",
    "from alembic_ext.configuration import shards_or_database\n",
)
#: What a loop over the shards has, ours or a project's own.
_LOOP: Final = re.compile(r"shards_or_database\(|get_(main|alembic)_option\(\s*['\"]shards['\"]")


@dataclass
class Changes:
    """The files to write, and the steps left to a person.

    Attributes:
        files: each file's text before and after, by path.
        left: what must be done by hand; a line with a path or with code is not wrapped.
    """

    files: dict[Path, tuple[str, str]] = field(default_factory=dict[Path, tuple[str, str]])
    left: list[str] = field(default_factory=list[str])

    def difference(self) -> str:
        """The changes as ``diff -u`` prints them."""
        lines: list[str] = []
        for path, (before, after) in self.files.items():
            old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
            lines += difflib.unified_diff(old, new, str(path), str(path))
        return "".join(lines)

    def write(self) -> None:
        """Write the files."""
        for path, (_, after) in self.files.items():
            with path.open("w", encoding="utf-8", newline="") as file:
                file.write(after)

    def edit(self, path: Path, after: str) -> None:
        """Record the new text of a file, if it differs."""
        before = read(path)
        if after != before:
            self.files[path] = before, after


def changes(
    file: Path,
    *,
    servers: Sequence[str] = (),
    stride: int | None = None,
    shards: Sequence[str] = (),
    models: str | None = None,
) -> Changes:
    """The changes that a project's migrations need to create ticket tables.

    Args:
        file: ``alembic.ini`` or ``pyproject.toml``.
        servers: URLs of the ticket servers; none if the file has them.
        stride: the pool's stride; None for the number of servers.
        shards: URLs of the application's databases; none if the file has them.
        models: ``MODULE:NAME`` of a MetaData or a declarative base, where ``env.py`` names none.

    Raises:
        TicketArgumentError: a file is missing, or there are no ticket servers.
    """
    found = Changes()
    if not file.is_file():
        raise TicketArgumentError(
            f'there is no file {file}: run `alembic init -t "$(sqla-tickets template)" migrations` first'
        )
    is_toml = file.suffix == ".toml"
    options = {"ticket_servers": list(servers), "ticket_stride": [str(stride or "")]}
    # Alembic reads sqlalchemy.url from no TOML file, and expands no variable in it
    is_url = not is_toml and len(shards) == 1 and "${" not in shards[0]
    options["sqlalchemy.url" if is_url else "shards"] = list(shards)
    text = read(file)
    for key, values in options.items():
        if any(values):
            text = with_option(text, key, values, is_toml=is_toml)
    if not re.search(r"^ticket_servers *=", text, re.MULTILINE):
        raise TicketArgumentError(
            f"{file} names no ticket servers: give one --server URL for each, in the pool's order"
        )
    found.edit(file, text)
    config = read_config(file)
    scripts = _scripts(file, config)
    env = Path(scripts.env_py_location)
    is_sharded = bool(
        re.search(r"^shards *=", text, re.MULTILINE) or config.get_alembic_option("shards")
    )
    found.edit(env, _with_everything(read(env), env, found, models, is_sharded=is_sharded))
    mako = Path(scripts.dir) / "script.py.mako"
    if mako.is_file():
        typed = re.sub(
            r"^from alembic import op$",
            "from alembic_ext import op",
            read(mako),
            flags=re.MULTILINE,
        )
        found.edit(mako, typed)
    unset = re.findall(rf"^(\S+) *= *{_UNSET}", text, re.MULTILINE)
    if is_sharded:
        unset = [key for key in unset if key != "sqlalchemy.url"]
    if unset:
        found.left.append(f"In {file}, set {' and '.join(unset)} to the URLs of your databases.")
    return found


def read(path: Path) -> str:
    """A file's text, with its line endings."""
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def _scripts(file: Path, config: Config) -> ScriptDirectory:
    try:
        return ScriptDirectory.from_config(config)
    except CommandError as error:
        raise TicketArgumentError(f"{file} names no migrations: {error}") from error


# -- the configuration file


def with_option(text: str, key: str, values: Sequence[str], *, is_toml: bool = False) -> str:
    """The text of ``alembic.ini`` or ``pyproject.toml`` with an option of Alembic's section.

    Args:
        text: the file's text.
        key: the option.
        values: one or more; several become one string with spaces, or a list.
        is_toml: whether it is a TOML file.

    Raises:
        TicketArgumentError: the file has no such section.
    """
    escaped = [value.replace("%", "%%") for value in values]
    shown = (
        json.dumps(escaped if key.endswith("s") else escaped[0]) if is_toml else " ".join(escaped)
    )
    header = "[tool.alembic]" if is_toml else "[alembic]"
    section = re.search(rf"^{re.escape(header)}[^\n]*\n(?:(?!\[).*\n?)*", text, re.MULTILINE)
    if section is None:
        raise TicketArgumentError(
            f"the file has no section {header} for the option {key}: add that section"
        )
    # an option continues in indented lines, a TOML list up to its bracket
    more = r"(?:\[[^\]]*\]|[^\n]*)" if is_toml else r"[^\n]*(?:\n[ \t]+[^\s;#][^\n]*)*"
    line = f"{key} = {shown}"
    old = re.compile(rf"^{re.escape(key)}[ \t]*=[ \t]*{more}", re.MULTILINE)
    body = section[0]
    if old.search(body):
        body = old.sub(lambda _: line, body, count=1)
    else:
        after = re.search(r"^sqlalchemy\.url\b[^\n]*\n", body, re.MULTILINE) or re.search(
            r"^[^\n]*\n", body
        )
        end = after.end() if after else len(body)
        body = f"{body[:end]}{line}\n{body[end:]}"
    return text[: section.start()] + body + text[section.end() :]


# -- env.py


def _with_everything(
    text: str, env: Path, found: Changes, models: str | None, *, is_sharded: bool
) -> str:
    """The text of ``env.py`` with the plugin, the models and the loop over shards."""
    if is_sharded and not _LOOP.search(text):
        sharded = with_loop(text)
        if sharded is None:
            found.left.append(
                f"In {env}, run the migrations on each shard: replace the functions by those of\n"
                f"{TEMPLATE / 'env.py'}\n"
                "and add its imports. Keep your target_metadata and your own arguments of context.configure(). Then"
                " `alembic current -v` names each shard."
            )
        text = sharded or text
    if is_sharded and _ignores_url(text):
        found.left.append(
            f"In {env}, remove the line that sets sqlalchemy.url: the loop over the shards ignores it."
        )
    text = with_plugin(text)
    if f'"{PLUGIN}"' not in text and f"'{PLUGIN}'" not in text:
        found.left.append(f"In {env}, give context.configure() the argument\n{PLUGINS}")
    unset = re.compile(r"^target_metadata = None$", re.MULTILINE)
    if unset.search(text):
        if models is None:
            found.left.append(f"In {env}, set target_metadata to the MetaData of your models.")
        else:
            text = unset.sub(_import_of(models), text, count=1)
    return text


def with_loop(text: str) -> str | None:
    """The text of ``env.py`` with the loop over shards; None if its functions are not those of ``alembic init``."""
    text = with_plugin(text)
    functions, ours = _functions(text), _functions(read(TEMPLATE / "env.py"))
    generated = [_functions(with_plugin(unedited)).items() for unedited in _unedited()]
    if not any(each <= functions.items() for each in generated):
        return None
    for name, function in ours.items():
        text = text.replace(functions[name], function)
    lines = text.splitlines(keepends=True)
    lines[_first_import(text) : _first_import(text)] = [
        line for line in _IMPORTS_OF_LOOP if line not in lines
    ]
    return "".join(lines)


def _ignores_url(text: str) -> bool:
    """Whether ``env.py`` has our loop, and sets ``sqlalchemy.url`` outside its functions."""
    module = ast.parse(text)
    statements = [n for n in module.body if not isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    calls = [n for s in statements for n in ast.walk(s) if isinstance(n, ast.Call)]
    return "shards_or_database(" in text and any(
        "config.set_main_option('sqlalchemy.url'" in ast.unparse(call) for call in calls
    )


def _first_import(text: str) -> int:
    """The index of the line with the first import, but for ``__future__``."""
    return next(
        node.lineno - 1
        for node in ast.parse(text).body
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and node.module != "__future__")
    )


def _functions(text: str) -> dict[str, str]:
    """The source of each function of a module."""
    return {
        node.name: ast.get_source_segment(text, node) or ""
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _unedited() -> Iterator[str]:
    """The ``env.py`` files that ``alembic init`` creates for one database with a synchronous driver."""
    templates = Path(alembic.__file__).parent / "templates"
    for name in ("generic", "pyproject"):
        if (templates / name / "env.py").is_file():
            yield read(templates / name / "env.py")


def _import_of(models: str) -> str:
    module, _, name = models.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise TicketArgumentError(
            f"--models {models!r}: expected MODULE:NAME, such as app.models:Base"
        )
    is_metadata = name.endswith("metadata")
    return f"from {module} import {name}\n\ntarget_metadata = {name}{'' if is_metadata else '.metadata'}"


def with_plugin(text: str) -> str:
    """The text of ``env.py`` with the plugin in each ``context.configure(connection=...)``."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    for call in reversed(list(_configuring(ast.parse(text)))):
        given: Mapping[str | None, ast.expr] = {k.arg: k.value for k in call.keywords}
        plugins = given.get("autogenerate_plugins")
        # before what is there: the end of a value may be followed by parentheses that are no part of it
        if plugins is None:
            argument, more = call.keywords[0], f"{PLUGINS}, "
            indent = _indent(lines[argument.lineno - 1])
            at = starts[argument.lineno - 1] + argument.col_offset
            if len(indent) == argument.col_offset:  # on a line of its own
                more = f"{PLUGINS},\n{indent}"
        elif isinstance(plugins, ast.List) and plugins.elts and not _lists_plugin(plugins):
            first, more = plugins.elts[0], f'"{PLUGIN}", '
            at = starts[plugins.lineno - 1] + plugins.col_offset + 1
            if first.lineno != plugins.lineno:
                more = f'\n{_indent(lines[first.lineno - 1])}"{PLUGIN}",'
        else:
            continue
        raw = raw[:at] + more.encode() + raw[at:]
    return raw.decode()


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _configuring(module: ast.Module) -> Iterator[ast.Call]:
    """The calls of ``context.configure(connection=...)``, from the first to the last."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        names = {keyword.arg for keyword in call.keywords}
        if ast.unparse(call.func) == "context.configure" and "connection" in names:
            yield call


def _lists_plugin(plugins: ast.List) -> bool:
    named = {each.value for each in plugins.elts if isinstance(each, ast.Constant)}
    return bool(named & {PLUGIN, f"~{PLUGIN}", "*"})
