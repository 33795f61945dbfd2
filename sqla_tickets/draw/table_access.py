"""Work on the ticket tables of one server: create, inspect, drop; ask the peers about them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from ..concurrency import time
from ..connect.connection import Connection
from ..errors import TicketError, TicketServerError
from ..tables import inspection
from ..tables.context import StatementContext
from ..tables.layouts import Layout, layout_of
from ..tables.new_table import NewTable
from .access import ServerAccess
from .table_state import Inspected, TicketTable
from .timing import TIMING

log = logging.getLogger("sqla_tickets.draw.server")
T = TypeVar("T")
P = ParamSpec("P")


class TableAccess(ServerAccess):
    """Access to one ticket server, and to the tables on it."""

    _asked_for_durability = False

    def create(self, element: NewTable) -> None:
        """Create the table with its row, or see that it is there and this pool's.

        Raises:
            TicketError: the server failed, or has another table of that name, or an empty one.
        """
        self.make(element.name, inspection.create, element)
        self.table(element.name).breaker.record_success()

    def drop(self, name: str) -> None:
        """Drop the table, if it is there, and forget what was known of it.

        Raises:
            TicketError: the server failed.
        """
        self.do(name, inspection.drop, name)
        self.tables.pop(name, None)

    def last_ticket(self, name: str) -> int:
        """The largest ticket that the server shows now, of any process.

        Raises:
            TicketError: the server failed, or has no such table.
        """

        def work(connection: Connection) -> int:
            table = self.table(name)
            layout = table.layout or self.find(connection, table)
            context = self.context.over(connection.cursor)
            return inspection.last_ticket(context, name, layout.name, layout.stub)

        return self._do(name, work, attempts=TIMING.read_attempts)

    def do(
        self,
        name: str,
        work: Callable[Concatenate[StatementContext, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Inspect the table, or alter it, and forget what was known of it.

        Args:
            name: the sequence's name.
            work: gets a connection in autocommit. It may be done again after a deadlock or a lock wait.
            args: what else it gets.
            kwargs: the same by name.

        Raises:
            TicketError: the server failed, or ``work`` did.
        """
        return self._do(name, self._on(name, work, *args, **kwargs))

    def read(
        self,
        name: str,
        work: Callable[Concatenate[StatementContext, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """`do` what somebody waits to see: no lock of another session is waited for long.

        Raises:
            TicketError: the server failed, or ``work`` did.
        """
        return self._do(name, self._on(name, work, *args, **kwargs), attempts=TIMING.read_attempts)

    def _on(
        self,
        name: str,
        work: Callable[Concatenate[StatementContext, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Callable[[Connection], T]:
        """What `do` does with a connection."""

        def on(connection: Connection) -> T:
            self.table(name).layout = None
            context = self.context.over(connection.cursor, connection.identity)
            return work(context, *args, **kwargs)

        return on

    def make(
        self,
        name: str,
        work: Callable[Concatenate[StatementContext, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """`do` what makes a table, unless the address leads to another server of the pool, which has other numbers.

        Raises:
            TicketServerError: it does.
            TicketError: the server failed, or ``work`` did.
        """

        def alone(context: StatementContext) -> T:
            peers = self._peers()
            other = None if peers is None else peers.same_server(self, context.identity)
            if other is not None:
                raise TicketServerError(
                    f"{name!r} is not made on {self}: its address leads to {other}, which would get the numbers of"
                    " both. Check the addresses, and run this again"
                )
            return work(context, *args, **kwargs)

        return self.do(name, alone)

    def _do(self, name: str, work: Callable[[Connection], T], attempts: int | None = None) -> T:
        """Do something about a table with a connection of its own, driver's errors translated."""

        def run() -> T:
            try:
                return self._run(work, attempts or TIMING.max_attempts)
            except TicketError:
                raise
            except Exception as error:
                raise self.failed(name, self.context.dialect.error_kind(error), error) from error

        return self._off_the_loop(run)

    # -- what is to be known before a draw

    def find(self, connection: Connection, table: TicketTable) -> Layout:
        """The layout of a table, of which nothing is taken for granted; what else it shows is remembered.

        Raises:
            TicketTableError: it is missing, has moved, or is not this pool's.
            Exception: the driver's error.
        """
        self._warn_if_forgetful(connection)
        context = self.context.over(connection.cursor)
        # before the rest: the next comparison finds what is altered after this
        defined = inspection.definition(context, table.name)
        active = inspection.active_table(context, table.name)
        layout, stub = active.layout, active.stub
        table.metadata, table.largest = active.metadata, active.largest
        last = inspection.last_ticket(context, table.name, layout, stub)
        if table.metadata is None:
            inspection.check_residue(context, table.name, last)
        table.record_shown(last)
        found = table.layout
        if found is None or (found.name, found.stub) != (layout, stub):
            numbering = context.stride, context.offset
            found = layout_of(layout, table.name, context.dialect, *numbering, stub)
            table.layout = found
        table.inspected = (
            Inspected(found, defined.text, connection.identity)
            if defined is not None
            and connection.identity is not None
            # what a text leaves out, as in the sql_mode ORACLE, cannot be compared
            and table.metadata is not None
            and str(table.metadata) in defined.text
            else None
        )
        connection.known_tables.add(table.name)
        return found

    def still_as_inspected(self, connection: Connection, table: TicketTable) -> Layout | None:
        """The layout of a table that is still as this run of the server has shown it; else None.

        When a server comes back all its clients connect anew at once. A whole inspection of each table takes
        it several times as long as a draw, and an inspection that waits in vain begins again.

        Raises:
            Exception: the driver's error.
        """
        before, layout, identity = table.inspected, table.layout, connection.identity
        if before is None or layout is None or before.layout is not layout or identity is None:
            return None
        if not identity.is_same_run(before.identity):
            return None
        known, context = table.fence, self.context.over(connection.cursor)
        defined = inspection.definition(context, table.name)
        if defined is None or defined.text != before.text:
            return None
        follows = defined.follows
        if (
            layout.name == "counter"
        ):  # read without the lock that `inspection.follows` would queue for
            follows = (inspection.number(context, table.name, layout.name, layout.stub) or 0) + 1
        if follows is None or follows <= known:
            return None
        connection.known_tables.add(table.name)
        return layout

    def ask_peers(
        self,
        table: TicketTable,
        connection: Connection | None = None,
        find: Callable[[], object] | None = None,
    ) -> None:
        """Ask the server's peers what they know of a table: in each generation, before it is drawn from.

        Args:
            table: the table.
            connection: over which it is to be drawn from; None when it is only inspected.
            find: inspects the table over that, by which doubtful marks are judged.

        Raises:
            TicketServerError: a peer of it is the same cluster.
            TicketTableError: no peer can tell, and the pool requires that one does.
            Exception: the driver's error.
        """
        over = connection or self  # another connection may have found another server since
        generation, peers = over.generation, self._peers()
        if peers is not None:
            peers.read_marks(self, table, over)
        if connection is not None:  # a peer may have told its identity just now
            self.refuse_duplicate(connection.identity)
        if table.generation < generation:  # another draw may have asked in a later one
            table.largest_shown = 0
        table.inspected = None
        if peers is not None:
            if table.doubtful_marks and find is not None:
                find()
            peers.judge_marks(self, table)
            if connection is not None:
                peers.check_mark(self, table, over)
        # of two draws that ask at once, the later generation counts
        table.generation = max(table.generation, generation)
        table.peers_asked_at = time.monotonic()

    def raise_fence(self, table: TicketTable, last: int) -> int:
        """Make every process refuse a table that was set back; returns the number to raise it above.

        Others may have drawn more than its peers were told of, and were killed. What is left to draw
        is not to reach up to the marks, and then to those.
        """
        peers = self._peers()
        if peers is not None and not peers.is_of_earlier_generation(self, table):
            above = last + peers.margin + 1
            if not self.is_raised_fence(last) and above < table.largest:
                table.observe_mark(above)
        return table.high_water

    def _warn_if_forgetful(self, connection: Connection) -> None:
        """Say once that a crash of this server can bring tickets back that it has issued."""
        dialect = self.context.dialect
        question = dialect.durability()
        if question is None or self._asked_for_durability:
            return
        self._asked_for_durability = True
        with contextlib.suppress(Exception):  # what stands in for MySQL need not have the variable
            ((variable, found),) = self.context.over(connection.cursor).rows(question)
            if not dialect.is_durable(int(found)):
                log.warning(
                    "%s has %s = %s: after a crash it issues tickets of the"
                    " last second again. Set it to 1 on ticket servers.",
                    self,
                    variable,
                    found,
                )
