"""Forks and images of a simulated process: its memory is copied, its threads are not, and its sockets are shared.

The package keeps its state in objects that a pool leads to, and in the module state of `stand_ins`. A deep copy of these
is what a fork has. Engines, dialects, drivers' connections and everything of the world itself stand for what both
processes share.

An image is resumed as the process that it was taken of: with its number, and with clocks that did not go on. No thread goes
on where it was, so an image is honest only of a process whose threads wait outside of the package.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from types import BuiltinMethodType, CellType, FunctionType, ModuleType
from typing import Any, Final, TypeVar

from sqlalchemy import Dialect, Engine, MetaData
from sqlalchemy.event.base import _Dispatch
from sqlalchemy.pool import Pool
from sqlalchemy.sql.visitors import Visitable

from sqla_tickets.snowflake.generator import SnowflakeGenerator

from .announcements import Announcements
from .checker import Checker, Health
from .models.drivers import psycopg, pymysql
from .network import Channel, ChannelWire, Host, Link, Network
from .snowflakes import IdChecker
from .stand_ins import Event, Lock, OwnerMark
from .world import Machine, Task, World

__all__ = ["fork", "image_of"]

T = TypeVar("T")

#: What is not copied: the world's, or of no state of a process.
_SHARED: Final[tuple[type, ...]] = (
    *(World, Machine, Task, Network, Host, Link, Channel, ChannelWire),
    *(Checker, IdChecker, Announcements, Health, OwnerMark),
    *(pymysql.PyMySQLConnection, pymysql.PyMySQLCursor),
    *(psycopg.PsycopgConnection, psycopg.PsycopgCursor),
    *(Engine, Dialect, Pool, MetaData, Visitable),
)
#: Frames that a copy of a process needs, at most.
_RECURSION: Final = 20_000


def fork(machine: Machine, name: str, memory: T, shared: Iterable[type] = ()) -> tuple[Machine, T]:
    """Copy a process.

    Args:
        machine: of the process, none of whose threads runs at the moment.
        name: of the copy.
        memory: what it has beside the state of its modules.
        shared: more classes of objects that are not copied.

    Returns:
        The machine of the copy, and its memory. No thread runs there.
    """
    child = Machine(machine.world, name)
    child.began, child.rate = machine.began, machine.rate
    child.suspended, child.wall_error = machine.suspended, machine.wall_error
    memo: dict[int, Any] = {}
    with _copying((*_SHARED, *shared)):
        child.state, copied = copy.deepcopy((_state(machine), memory), memo)
    child.state["memory"] = memo  # what threads of the parent hold is never collected
    return child, copied


def image_of(
    machine: Machine, memory: T, shared: Iterable[type] = ()
) -> Callable[[], tuple[Machine, T]]:
    """Take an image of a process.

    Args:
        machine: of the process, whose threads are all outside of the package at the moment.
        memory: what it has beside the state of its modules.
        shared: more classes of objects that are not copied.

    Returns:
        What resumes the process from it when it has died: its new machine, and its memory. No thread runs there.
    """
    world, began = machine.world, machine.world.now
    resumed = Machine(world, f"{machine}'")
    resumed.number, resumed.rate = machine.number, machine.rate
    resumed.at_death = machine.at_death
    memo: dict[int, Any] = {id(machine): resumed}
    with _copying({*_SHARED, *shared} - {OwnerMark}):
        resumed.state, copied = copy.deepcopy((_state(machine), memory), memo)
    resumed.state["memory"] = memo

    def resume() -> tuple[Machine, T]:
        resumed.began = machine.began - (world.now - began) * machine.rate
        resumed.wall_error = machine.wall_error
        return resumed, copied

    return resume


def _state(machine: Machine) -> dict[str, object]:
    return {name: one for name, one in machine.state.items() if name != "memory"}


@contextmanager
def _copying(shared: Iterable[type]) -> Iterator[None]:
    """Let ``copy.deepcopy`` treat shared objects, functions and weak references as a fork does."""
    dispatch: dict[type, Any] = vars(copy)["_deepcopy_dispatch"]
    own: dict[type, Callable[[Any, dict[int, Any]], Any]] = {
        FunctionType: _function,
        BuiltinMethodType: _builtin,
        CellType: _cell,
        weakref.ref: _weak,
        Lock: _lock,
        Event: _event,
        SnowflakeGenerator: _attributes,
        Context: _itself,
    }
    before = {type_: dispatch.get(type_) for type_ in own}
    methods: dict[type, Any] = dict.fromkeys(shared, _itself)
    methods[_Dispatch] = _listeners
    limit = sys.getrecursionlimit()
    dispatch.update(own)
    for class_, method in methods.items():
        setattr(class_, "__deepcopy__", method)  # noqa: B010  # no class has one
    sys.setrecursionlimit(_RECURSION)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        for class_ in methods:
            delattr(class_, "__deepcopy__")
        for type_, copier in before.items():
            if copier is None:
                del dispatch[type_]
            else:
                dispatch[type_] = copier


def _attributes(own: T, memo: dict[int, Any]) -> T:
    """An object whose class makes one for each pool."""
    new = memo[id(own)] = object.__new__(type(own))
    vars(new).update(copy.deepcopy(vars(own), memo))
    return new


def _itself(shared: T, memo: object) -> T:
    return shared


def _listeners(dispatch: Any, memo: dict[int, Any]) -> Any:
    """The listeners of a pool's own."""
    make, arguments = dispatch.__reduce__()
    new = memo[id(dispatch)] = make(*arguments)
    for name in dispatch._event_names:
        for listener in getattr(dispatch, name).listeners:
            found = getattr(new, name).for_modify(new)
            found.listeners.append(copy.deepcopy(listener, memo))
    return new


def _function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """A function with what it closes over."""
    if function.__closure__ is None:
        return function
    closure = copy.deepcopy(function.__closure__, memo)
    new = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
    )
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def _builtin(method: Any, memo: dict[int, Any]) -> Any:
    """A method of a list or a deque, bound to its copy; or a function."""
    owner = method.__self__
    if owner is None or isinstance(owner, (ModuleType, type)):
        return method
    return getattr(copy.deepcopy(owner, memo), method.__name__)


def _cell(cell: CellType, memo: dict[int, Any]) -> CellType:
    new = memo[id(cell)] = CellType()
    with suppress(ValueError):  # it is empty
        new.cell_contents = copy.deepcopy(cell.cell_contents, memo)
    return new


def _weak(reference: weakref.ref[Any], memo: dict[int, Any]) -> weakref.ref[Any]:
    target = reference()
    return reference if target is None else weakref.ref(copy.deepcopy(target, memo))


def _lock(lock: Lock, memo: object) -> Lock:
    return lock.of_fork()


def _event(event: Event, memo: object) -> Event:
    return event.of_fork()
