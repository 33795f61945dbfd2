"""How long a draw takes at most, where that is set, and what ends each wait.

**A draw takes no longer than servers x (timeout + lock_wait)**: 2 seconds for each server, as `TicketPool` sets
`Timeouts`. A server that waits for a lock sends as little as a frozen one. A ping on another connection distinguishes
them: a server that answers is alive. So a frozen server costs a draw at most ``timeout``, 1 second; a locked table
costs both, 2 seconds.

The earliest of these ends a wait for one server. The first two of them are exact to a fraction of a second:

- The hedging monitor cuts the draw's socket, with every driver that shows one: `draw.hedging`, ``_action``.
- A draw leaves the queue for a connection: `connect.pool`, ``_given_back``.
- After an error that does not count against the server, a draw repeats its statement until the time is over:
  `draw.server`, ``_repeat``.
- The server ends its own wait for a lock: `dialects`, ``set_up_session``. MySQL and MariaDB take whole seconds.
- The driver ends what the monitor cannot reach: `dialects`, ``set_connect_defaults``. Some drivers take whole seconds. The
  user's own ``Engine`` keeps its time-outs.

Six exceptions add to that:

- A server that is asked again: at most twice if it came back, ended the draw with a deadlock, answers others, or had
  closed an idle connection, and three times more if its table serves a queue of others: `draw.failover`,
  ``servers_to_try``, with ``max_queues``. The draw checks that for half a second at most: `draw.slow_path`,
  ``_is_in_a_queue``, with ``queue_seconds``.
- A draw that several callers share: ``timeout`` + ``lock_wait``: `draw.failover`, ``_share``.
- A block that another task draws: a quarter of a second. `draw.timing`: ``refill_wait_seconds``, ``refills_waited_for``.
- The marks of peers: a second before the first draw from a table, and one more where a mark looks forged; with
  ``require_peer``, each wait is as long as for a server. 5 seconds for a draw that is far ahead. `high_water.timing`:
  ``patience_seconds``, ``lead_wait_seconds``.
- A sequence that is being moved: 5 seconds. `draw.timing`: ``move_seconds``.
- A wait for a free thread, in an event loop with a synchronous driver: 32 tasks draw at once. `concurrency`,
  ``_threads``.

A call for many tickets may take several draws; a block takes one, if the user may lock tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Timeouts:
    """The time-outs of one ticket server, as ``TicketPool(timeout=, lock_wait=)`` sets them.

    Docs repeat the defaults as numbers: `TicketPool`, README and docs/understand/how-a-draw-works.

    Attributes:
        timeout_seconds: how long the server may send nothing, on all connections of the process. If it is shorter than a draw takes on
            a healthy server, draws fail.
        lock_wait_seconds: how long the server itself waits for a lock.
    """

    timeout_seconds: float = 1.0
    lock_wait_seconds: float = 1.0

    @property
    def draw_seconds(self) -> float:
        """The longest that a draw waits for one server."""
        return self.timeout_seconds + self.lock_wait_seconds

    @property
    def work_seconds(self) -> float:
        """The time after which work of several statements is cancelled in an event loop; no draw waits for it."""
        return 5 * self.draw_seconds

    @property
    def cancel_seconds(self) -> float:
        """The time after which an attempt to connect in an event loop is cancelled; a driver's own time-out comes first."""
        return math.ceil(self.draw_seconds) + 1


@dataclass(frozen=True)
class ConnectTiming:
    """Fixed limits: the waits within a draw's time, and the number of connections.

    Attributes:
        several_round_trips_seconds: the least patience for opening a connection, and for inspecting a table.
        recheck_seconds: how often a draw in the queue checks that a connection can still come, and how long other work
            waits for one before it opens its own.
        first_recheck_seconds: how often an event loop checks whether another one has opened the first connection.
        server_full_seconds: how long a server that had too many connections is not asked for a new one.
        max_connections: how many a process keeps to one server; further draws wait for one of them.
        max_connecting: how many are opened at once: each takes several round trips, while a draw takes one.
        start_tolerance_seconds: how far two readings of one server's start may differ, since its uptime has whole
            seconds.
    """

    several_round_trips_seconds: float = 0.05
    recheck_seconds: float = 0.25
    first_recheck_seconds: float = 0.01
    server_full_seconds: float = 1.0
    max_connections: int = 16
    max_connecting: int = 4
    start_tolerance_seconds: float = 2.0


CONNECT_TIMING: Final = ConnectTiming()
