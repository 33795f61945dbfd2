"""Work on the ticket tables of one server: create, inspect and drop them, and ask the peers about them."""

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
    """Access to one ticket server and its tables."""

    _asked_for_durability = False

    def create(self, element: NewTable) -> None:
        """Create the table with its row, or verify that an existing one is this pool's.

        Raises:
            TicketError: the server failed, or the name has another table or an empty one.
        """
        self.make(element.name, inspection.create, element)
        self.table(element.name).breaker.record_success()

    def drop(self, name: str) -> None:
        """Drop the table if it exists, and forget its state.

        Raises:
            TicketError: the server failed.
        """
        self.do(name, inspection.drop, name)
        self.tables.pop(name, None)

    def last_ticket(self, name: str) -> int:
        """The largest ticket, of any process, that the server shows now.

        Raises:
            TicketError: the server failed, or has no such table.
        """

        def work(connection: Connection) -> int:
            table, last = self.table(name), None
            layout = table.layout
            if layout is not None:
                context = self.context.over(connection.cursor)
                last = inspection.number(context, name, layout.name, layout.stub)
            if last is None:  # it is new here, or was converted
                self.find(connection, table)
                last = table.last_shown
            return last

        return self._do(name, work, attempts=TIMING.read_attempts)

    def do(
        self,
        name: str,
        work: Callable[Concatenate[StatementContext, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Inspect or alter the table, and forget its state.

        Args:
            name: the sequence's name.
            work: called with a connection in autocommit; called again after a deadlock or a lock wait.
            args: more arguments of ``work``.
            kwargs: more keyword arguments of ``work``.

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
        """Do ``work`` that only reads, for a user who waits; it waits only briefly for other sessions' locks.

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
        """The part of `do` that needs a connection."""

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
        """Do ``work`` that creates a table, unless the address leads to another server of the pool.

        Raises:
            TicketServerError: the address leads to another server of the pool.
            TicketError: the server failed, or ``work`` did.
        """

        def alone(context: StatementContext) -> T:
            peers = self._peers()
            other = None if peers is None else peers.same_server(self, context.identity)
            if other is not None:
                raise TicketServerError(
                    f"{name!r} is not created on {self}: its address leads to {other}, which would issue the numbers "
                    "of both. Check the addresses, and run this again"
                )
            return work(context, *args, **kwargs)

        return self.do(name, alone)

    def _do(self, name: str, work: Callable[[Connection], T], attempts: int | None = None) -> T:
        """Do ``work`` on a table with a connection of its own, and translate the driver's errors."""

        def run() -> T:
            try:
                seconds = self.timeouts.work_seconds
                return self._in_time(seconds, work, attempts or TIMING.max_attempts)
            except TicketError:
                raise
            except Exception as error:
                raise self.failed(name, self.context.dialect.error_kind(error), error) from error

        return self._off_the_loop(run)

    # -- before a draw

    def find(self, connection: Connection, table: TicketTable) -> Layout:
        """Inspect a table anew: returns its layout, and remembers the rest.

        Raises:
            TicketTableError: it is missing, has moved, or is not this pool's.
            Exception: the driver's error.
        """
        self._warn_if_forgetful(connection)
        context = self.context.over(connection.cursor)
        # first: the next comparison then finds later alterations
        defined = inspection.definition(context, table.name)
        active, last = inspection.table_and_last(context, table.name)
        layout, stub = active.layout, active.stub
        table.metadata = active.metadata
        table.record_largest(active.largest)
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
            # a text without the metadata, as in the sql_mode ORACLE, cannot be compared
            and table.metadata is not None
            and str(table.metadata) in defined.text
            else None
        )
        connection.known_tables.add(table.name)
        return found

    def still_as_inspected(self, connection: Connection, table: TicketTable) -> Layout | None:
        """The layout of a table that is unchanged since its inspection in this run of the server; else None.

        When a server comes back, all its clients connect at once. A full inspection of each table takes several times
        as long as a draw, and one that waits in vain begins again.

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
        if layout.name == "counter":  # read without the lock that `inspection.follows` queues for
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
        """Read a table's marks from the server's peers: once in each generation, before the first draw.

        Args:
            table: the table.
            connection: the connection for the draw; None if the table is only inspected.
            find: inspects the table over that connection, so that doubtful marks can be judged.

        Raises:
            TicketServerError: a peer is in the same cluster.
            TicketTableError: no peer can report a mark, and the pool requires one.
            Exception: the driver's error.
        """
        over = connection or self  # another connection may have led to another server since
        generation, peers = over.generation, self._peers()
        if peers is not None:
            peers.read_marks(self, table, over)
        if connection is not None:  # a peer may have shown its identity just now
            self.refuse_duplicate(connection.identity)
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
        """Raise the fence of a set-back table in every process; returns the number to raise the table above.

        Killed processes may have drawn tickets above the marks. So the fence is above the marks and those tickets,
        and no draw can climb to it. Near the end of the table's numbers, it is the last ticket.
        """
        peers = self._peers()
        if peers is not None and not peers.is_of_earlier_generation(self, table):
            above = last + peers.margin + 1
            has_room = not self.is_raised_fence(last) and above < table.largest
            table.observe_mark(above if has_room else last)
        return table.high_water

    def _warn_if_forgetful(self, connection: Connection) -> None:
        """Warn once if a crash of this server can make it repeat tickets."""
        dialect = self.context.dialect
        question = dialect.durability()
        if question is None or self._asked_for_durability:
            return
        self._asked_for_durability = True
        with contextlib.suppress(Exception):  # a substitute for MySQL may lack the variable
            rows = self.context.over(connection.cursor).rows(question)
            found = {str(variable): str(value) for variable, value in rows}
            for variable in dialect.lossy_variables(found):
                log.warning(
                    "%s has %s = %s: after a crash it can repeat its last tickets. Set the variable to 1 on "
                    "ticket servers.",
                    self,
                    variable,
                    found[variable],
                )
