"""An interrupt at one line of the package, as a signal's handler raises it, and what is left of a pool then."""

from __future__ import annotations

import ast
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from typing_extensions import Self

import sqla_tickets
from sqla_tickets import TicketPool
from sqla_tickets.connect.engines import in_memory
from sqla_tickets.snowflake.allocator import allocator_of
from tests.support.draws import locks_of

__all__ = ["LONG", "AtBytecode", "Interrupt", "at_rest", "in_another_thread", "monitors"]

_NO_PLACES = ("<module>", "__del__", "let_go_of_socket")
PACKAGE = str(Path(sqla_tickets.__file__).parent)
#: Longer than a loaded machine takes for what nobody waits for in vain, in seconds.
LONG = 40.0


class Interrupt:
    """Raises KeyboardInterrupt at one line of the package that this thread comes to inside of the ``with``.

    Left out are line events at which Python leaves a lock taken, and runs no signal's handler: the one with
    which a ``with`` is left, as ``__exit__`` is not called any more; and that of a ``try:`` within a block,
    as Python 3.11's tables of handlers have no entry for it. From ``__del__`` no interrupt comes to anybody.

    Args:
        at: how many lines go before.

    Attributes:
        where: the line, once it was come to.
        passed: how many lines went before.
    """

    def __init__(self, at: int) -> None:
        self._at, self.where = at, ""
        self.passed = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        sys.settrace(self._before)
        return isinstance(error, KeyboardInterrupt)

    def _called(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or _is_finalised(frame):
            return None
        last = frame.f_lineno

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            nonlocal last
            if event == "line" and not self.where:
                before, last = last, frame.f_lineno
                bodies, nested = _guards(code.co_filename)
                if last not in nested and before not in bodies.get(last, ()):
                    self._come_to(frame)
            return trace

        return trace

    def _come_to(self, frame: FrameType) -> None:
        code = frame.f_code
        if self.passed < self._at:
            self.passed += 1
            return
        self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        raise KeyboardInterrupt


class AtBytecode:
    """Does something once, where this thread comes to a bytecode of one function: as a signal's handler, or another thread.

    Args:
        function: the function.
        at: how many of its bytecodes go before.
        action: what is done.

    Attributes:
        was_done: whether the function has so many bytecodes.
    """

    def __init__(
        self, function: Callable[..., object], at: int, action: Callable[[], object]
    ) -> None:
        self._code, self._at, self._action = function.__code__, at, action
        self.was_done = False

    def __enter__(self) -> Self:
        if sys.version_info >= (3, 12):  # a trace function misses bytecodes there
            monitoring, events = sys.monitoring, sys.monitoring.events
            monitoring.use_tool_id(monitoring.DEBUGGER_ID, "tests")
            monitoring.register_callback(monitoring.DEBUGGER_ID, events.INSTRUCTION, self._comes_to)
            monitoring.set_local_events(monitoring.DEBUGGER_ID, self._code, events.INSTRUCTION)
        else:
            self._before = sys.gettrace()
            sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.version_info >= (3, 12):
            sys.monitoring.set_local_events(sys.monitoring.DEBUGGER_ID, self._code, 0)
            sys.monitoring.free_tool_id(sys.monitoring.DEBUGGER_ID)
        else:
            sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if frame.f_code is not self._code or self.was_done:
            return None
        frame.f_trace_opcodes = True
        return self._trace

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "opcode":
            self._comes_to()
        return self._trace

    def _comes_to(self, *_: object) -> None:
        if self.was_done:
            return
        if self._at == 0:
            self.was_done = True
            self._action()
        self._at -= 1


def _is_finalised(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_code.co_name in _NO_PLACES:
            return True
        frame = frame.f_back
    return False


@functools.cache
def _guards(file: str) -> tuple[dict[int, range], set[int]]:
    """The lines inside of each ``with`` of a file, by its line; and the lines of each ``try`` within another block."""
    bodies: dict[int, range] = {}
    nested: set[int] = set()
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            bodies[node.lineno] = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        if isinstance(node, (ast.With, ast.Try)):
            nested.update(
                n.lineno for n in ast.walk(node) if isinstance(n, ast.Try) and n is not node
            )
    return bodies, nested


def in_another_thread(work: Callable[[], object], what: str) -> list[str]:
    """Do something in a thread, and tell why it has failed, or that it hangs."""
    errors: list[str] = []

    def do() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # it is told where the thread is waited for
            errors.append(f"{what}: {error!r}")

    thread = threading.Thread(target=do, name=what, daemon=True)
    thread.start()
    thread.join(LONG)
    return [*errors, *([f"{what} hangs"] if thread.is_alive() else [])]


def at_rest(*pools: TicketPool) -> list[str]:
    """What is still under way in pools that nobody uses, after a while."""
    end = time.monotonic() + LONG / 2
    while (left := [what for pool in pools for what in _under_way(pool)]) and (
        time.monotonic() < end
    ):
        time.sleep(0.002)
    return left


def monitors() -> set[threading.Thread]:
    """The threads of hedging monitors, of whatever pool."""
    return {
        thread for thread in threading.enumerate() if thread.name == "sqla_tickets hedging monitor"
    }


def _under_way(pool: TicketPool) -> Iterator[str]:
    for lock in locks_of(pool):
        if lock.acquire(blocking=False):
            lock.release()
        else:
            yield f"a lock is taken: {lock}"
    for server in pool.servers:
        idle = server.connections.of_threads
        registers = {
            "draws": server.in_flight,
            "silent draws": server.unresponsive,
            "connections on their way": list(idle.connecting),
            "requests for connections": idle.queue,
            "probes": server.probes.are_under_way,
        }
        yield from (f"{what} of {server}: {it}" for what, it in registers.items() if it)
    for peer in pool._marks._peers:
        if peer.is_writing:
            yield f"marks are written to {peer}"
        counts = peer.server.breaker.is_closed and not in_memory(peer.server.engine)
        if counts and not peer.store.is_well:
            yield f"{peer} is not asked for marks"
    yield from (
        f"{lease} is renewed"
        for lease in allocator_of(pool)._leases.values()
        if lease.renewals.refs
    )
