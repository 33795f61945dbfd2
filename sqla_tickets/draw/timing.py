"""The time limits and sizes of draws, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["TIMING", "Timing"]


@dataclass(frozen=True)
class Timing:
    """Times and sizes of draws, probes, hedges and buffers.

    What a user may set is in `sqla_tickets.connect.timeouts`.

    Attributes:
        idle_seconds: after how long without a draw a table's peers are asked again, as they may know more by then.
        max_attempts: how often a draw that stays with its server, or work on a table, is sent to it if it fails with
            deadlocks and lock waits only.
        read_attempts: the same for reading a table while a user waits.
        retry_pause_seconds: how long work on a table pauses at most before it is sent again.
        deadlock_pause_seconds: how long a draw pauses at most before it asks a server again that has ended it with a
            deadlock; each further one doubles it.
        deadlock_doublings: how often it is doubled at most.
        long_draw_seconds: a draw that takes so long may wait for the draws of many other clients.
        max_inspections: how often one draw inspects a table again because its columns have just changed.
        remembered_blocks: how many blocks of a table are remembered, for comparison with late ones.
        probe_wait_seconds: how long a draw waits at least for probes of servers that have hung for a while.
        probe_pause_seconds: the shortest pause between two polls of the probes by a draw that no server has answered.
        probe_pause_part: the pause is at least this part of the draw's wait so far.
        queue_seconds: for how long at most a draw that waits for a lock in vain checks whether others are served.
        queue_polls: how often it checks in that time.
        max_queues: how often a draw joins the queue for a ticket table again, when no other server answers.
        first_wait_seconds: how long a circuit stays open after the first failure.
        longest_wait_seconds: how long it stays open after any failure, at most.
        one_trial_seconds: how long the forced trial of one draw counts for all, if a server refuses connections.
        stale_probe_seconds: how long after the first probe the next one may begin; each one doubles the wait.
        stale_forced_probe_seconds: the same if no other server is left.
        ping_seconds: how long a ping may take until the probe opens a connection: a firewall cuts off idle ones.
        tick_seconds: the shortest time between two polls of the requests in flight.
        late_tick_seconds: the time between two polls while a draw is overdue.
        lag_seconds: a poll later than this shows that the process got no processor time.
        monitor_idle_seconds: how long without a draw that it polls until the monitor sleeps; waking it costs two polls.
        unused_seconds: after how long without a draw the monitor closes idle connections except one, some after twice
            that. The server then has room for other clients.
        least_patience_seconds: the least patience of a draw, however quick the others were.
        spare_patience_seconds: how much longer a draw waits until it wakes the monitor, which costs a busy machine more
            than the wait.
        first_patience_seconds: the patience of a draw while too few have been measured.
        measure_seconds: the time between two measurements of the usual duration.
        slow_measure_seconds: the same while fewer than `few_draws` end in that time.
        remembered_draws: how many draws' durations are remembered.
        few_draws: how many durations are too few for a measurement.
        overdue_times: a draw is overdue when it takes this many times as long as `overdue_share` of the others.
        overdue_share: a quantile, 0 to 1.
        most_tokens: how many suspicions and hedges in a row may fail.
        first_tokens: how many a process begins with.
        tokens_per_draw: how many tokens each draw adds.
        ask_again_part: the part of a server's time-out after which the next probe is sent.
        loop_iterations: the iterations after which an event loop has read any answer that had arrived.
        move_seconds: how long a draw waits for a move to end.
        redirect_pause_seconds: how long it waits at first before it inspects again.
        longest_redirect_pause_seconds: how long it waits at most.
        blocks_at_once: how many blocks a draw takes at most, if blocks are used up faster than they are drawn.
        tickets_at_once: the largest number of tickets in such blocks: nine tenths of the lead over a peer's mark, as a
            draw of more than the lead waits until the peer has stored a mark of these tickets themselves.
        times_its_draw: such blocks should last this many times as long as their draw took.
        ready_tickets: how many single tickets are ready at most.
        lost_fetch_seconds: after how long an unfinished fetch is forgotten, as its event loop may be closed.
        failed_fetch_seconds: the pause after a failed fetch.
        shared_from: how many draws in flight to each server make the next ones share one.
        most_shares: how many callers a shared draw serves at most.
        most_in_a_share: how many tickets a caller may want to share a draw; with all, not more than `tickets_at_once`.
        shared_wait_seconds: for how long a caller may always wait for a shared draw to begin, or to end.
        shared_wait_times: it may wait this many times as long as it takes until a draw is overdue.
        refill_wait_seconds: how long tasks wait for a block before one of them draws another, as its server may be
            unresponsive.
        refills_waited_for: how many blocks in a row a task waits for before it draws for itself.
        refill_loop_iterations: the least iterations of the event loop in `refill_wait_seconds`: with fewer, the loop
            is slow, not the server.
    """

    idle_seconds: float = 30.0
    max_attempts: int = 30
    read_attempts: int = 2
    retry_pause_seconds: float = 0.05
    deadlock_pause_seconds: float = 0.005
    deadlock_doublings: int = 5
    long_draw_seconds: float = 0.05
    max_inspections: int = 5
    remembered_blocks: int = 128
    probe_wait_seconds: float = 0.2
    probe_pause_seconds: float = 0.005
    probe_pause_part: float = 0.1
    queue_seconds: float = 0.5
    queue_polls: int = 6
    max_queues: int = 3
    first_wait_seconds: float = 0.25
    longest_wait_seconds: float = 5.0
    one_trial_seconds: float = 0.05
    stale_probe_seconds: float = 1.0
    stale_forced_probe_seconds: float = 0.2
    ping_seconds: float = 0.1
    tick_seconds: float = 0.02
    late_tick_seconds: float = 0.025
    lag_seconds: float = 0.005
    monitor_idle_seconds: float = 0.02
    unused_seconds: float = 5.0
    least_patience_seconds: float = 0.01
    spare_patience_seconds: float = 0.01
    first_patience_seconds: float = 0.1
    measure_seconds: float = 0.1
    slow_measure_seconds: float = 0.5
    remembered_draws: int = 256
    few_draws: int = 20
    overdue_times: float = 1.5
    overdue_share: float = 0.99
    most_tokens: float = 3.0
    first_tokens: float = 1.0
    tokens_per_draw: float = 0.01
    ask_again_part: float = 0.4
    loop_iterations: int = 4
    move_seconds: float = 5.0
    redirect_pause_seconds: float = 0.005
    longest_redirect_pause_seconds: float = 0.05
    blocks_at_once: int = 64
    tickets_at_once: int = 45_000
    times_its_draw: int = 10
    ready_tickets: int = 4000
    lost_fetch_seconds: float = 10.0
    failed_fetch_seconds: float = 1.0
    shared_from: int = 2
    most_shares: int = 250
    most_in_a_share: int = 100
    shared_wait_seconds: float = 0.1
    shared_wait_times: float = 2.0
    refill_wait_seconds: float = 0.03
    refills_waited_for: int = 8
    refill_loop_iterations: int = 10


TIMING: Final = Timing()
