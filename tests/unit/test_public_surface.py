"""What users may use stands in the reference, and nothing else has a public name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import sqla_tickets
from sqla_tickets import (
    AsyncTicketPool,
    NodeLeases,
    PreflushDefault,
    SnowflakeGenerator,
    SnowflakeSequence,
    TicketPool,
    TicketSequence,
    TicketServer,
)

REFERENCE = Path(sqla_tickets.__file__).parents[1] / "docs/reference/api.md"
ENTRY = re.compile(
    r"^\.\. auto(?:class|exception|data|function):: sqla_tickets\.(\w+)\n((?:   :.*\n)*)",
    re.MULTILINE,
)
#: A line of "Args:" or "Attributes:".
ITEM = re.compile(r"^    (?:    )?(\w+): ", re.MULTILINE)

#: What SQLAlchemy reads from a column's default; 2.0 has no ``compare_argument`` of its own.
OF_DEFAULTS = {"arg", "compare_argument", "for_update", "inherit_cache"}


def entries() -> dict[str, set[str]]:
    """The names of the reference, each with the members that are shown."""
    found: dict[str, set[str]] = {}
    for name, options in ENTRY.findall(REFERENCE.read_text()):
        members = re.findall(r":members: (.*)", options)
        found[name] = set(members[0].split(", ")) if members else set()
    return found


def classes() -> list[type]:
    """The public classes; a `TicketServer` is built by its pool, and users only pass it on."""
    public = (getattr(sqla_tickets, name) for name in sqla_tickets.__all__)
    return [each for each in public if isinstance(each, type) and each is not TicketServer]


def described(kind: type) -> set[str]:
    """The arguments and attributes that the docstrings of a class and its bases tell of."""
    return {item for base in kind.__mro__ for item in ITEM.findall(base.__doc__ or "")}


def own(kind: type, names: Iterable[str]) -> set[str]:
    """The public names that do not come from a class of another package."""
    others = [base for base in kind.__mro__ if not base.__module__.startswith("sqla_tickets")]
    inherited = {name for base in others for name in dir(base)}
    return {name for name in names if name[0] != "_"} - inherited - OF_DEFAULTS


def test_reference_has_the_public_names() -> None:
    assert sorted(entries()) == sorted(sqla_tickets.__all__)


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_reference_has_the_public_members(kind: type) -> None:
    shown = entries()[kind.__name__]
    assert own(kind, dir(kind)) - shown - described(kind) == set()
    assert shown <= set(dir(kind))


def test_reference_has_the_public_attributes() -> None:
    pool = TicketPool(["sqlite://"])
    for instance in (
        pool,
        AsyncTicketPool(["sqlite://"]),
        NodeLeases(pool),
        SnowflakeGenerator(pool, "photos"),
        SnowflakeSequence("photos"),
        TicketSequence("photos"),
        PreflushDefault(int),
    ):
        kind = type(instance)
        assert not own(kind, vars(instance)) - described(kind) - entries()[kind.__name__]


#: The methods of a pool that ask no server: nothing waits for them.
ASKS_NO_SERVER = {"attach", "detach", "attached", "declared_sequences", "buffered"}


def test_async_pool_has_the_names_of_the_pool() -> None:
    pool = AsyncTicketPool(["sqlite://"])
    shown = own(TicketPool, dir(pool.sync_pool))
    # SQLAlchemy finds the listeners of the synchronous one
    assert own(AsyncTicketPool, dir(pool)) == shown - {"dispatch"} | {"sync_pool"}


METHODS = [name for name, _ in inspect.getmembers(TicketPool, inspect.isfunction) if name[0] != "_"]


@pytest.mark.parametrize("name", ["__init__", *METHODS])
def test_async_method_has_the_signature_of_the_pool(name: str) -> None:
    method: Callable[..., object] = getattr(TicketPool, name)
    awaited: Callable[..., object] = getattr(AsyncTicketPool, name)
    assert inspect.signature(awaited) == inspect.signature(method)
    passed_on = inspect.signature(awaited, follow_wrapped=False).parameters.values()
    assert {each.kind for each in passed_on} >= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    assert awaited.__doc__ == method.__doc__
    assert inspect.iscoroutinefunction(awaited) is (name not in {"__init__", *ASKS_NO_SERVER})
