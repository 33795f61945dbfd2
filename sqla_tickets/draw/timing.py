"""The time limits and sizes of draws, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["TIMING", "Timing"]


@dataclass(frozen=True)
class Timing:
    """How long draws, probes, hedges and buffers wait, and how much they take.

    What a user may set is in `sqla_tickets.connect.timeouts`.

    Attributes:
        idle_seconds: how long a table goes without a draw until its peers are asked again: they may know more by now.
        max_attempts: how often one draw, or work on a table, is sent to one server while deadlocks and lock
            waits are all that happens.
        read_attempts: the same for a look at a table, which somebody waits for.
        retry_pause_seconds: how long work on a table pauses at most before it is sent again.
        deadlock_pause_seconds: how long a draw pauses at most after its first deadlock; each other one doubles it.
        deadlock_doublings: how often it is doubled at most.
        max_inspections: how often one draw inspects a table again whose columns are not what they were a moment ago.
        remembered_blocks: how many blocks of a table are compared with one that comes late.
        probe_wait_seconds: how long a draw waits at least for probes of servers that have hung for a while.
        probe_pause_seconds: how long a draw that no server has answered waits at least between two polls of the probes.
        probe_pause_part: the part of its wait so far that it waits at least.
        queue_seconds: for how long at most a draw that waits for a lock in vain checks whether others are served.
        queue_polls: how often it checks in that time.
        max_queues: how often more a draw joins the queue for a ticket table, when no other server answers.
        first_wait_seconds: how long a circuit stays open after the first failure.
        longest_wait_seconds: how long it stays open after any failure, at most.
        one_trial_seconds: how long only one draw makes a forced trial of a server that refuses connections.
        stale_probe_seconds: how long the first probe is waited for until the next one begins; each one doubles that.
        stale_forced_probe_seconds: the same where no other server is left to ask.
        ping_seconds: how long a ping may take until the probe opens a connection: a firewall cuts off idle ones.
        tick_seconds: the shortest time between two polls of the requests in flight.
        late_tick_seconds: the longest while a draw is overdue.
        lag_seconds: a poll that comes so much too late tells that this process got no processor time.
        monitor_idle_seconds: how long without any draw until the monitor falls asleep; to wake it costs two polls.
        unused_seconds: how long idle connections go without a draw, all but one, until the monitor closes them; some
            twice as long. The server may let in others then.
        least_patience_seconds: what every draw is given, however quick the others were.
        first_patience_seconds: what every draw is given while too few have been measured.
        measure_seconds: how long from one measurement of what is usual to the next.
        remembered_draws: how many draws' times are remembered.
        few_draws: how many of them are too few to tell what is usual.
        overdue_times: a draw is overdue when it takes so many times as long as `overdue_share` of the others.
        overdue_share: a quantile, 0 to 1.
        most_tokens: how many suspicions and hedges there may be in a row that achieve nothing.
        tokens_per_draw: how many of them each draw allows in the long run.
        ask_again_part: the part of a server's time-out after which the next probe is sent.
        loop_iterations: iterations of an event loop after which it would have read an answer that had come in.
        move_seconds: how long a draw waits for a move to end.
        redirect_pause_seconds: how long it waits at first before it inspects again.
        longest_redirect_pause_seconds: how long it waits later.
        blocks_at_once: how many blocks a draw takes at most while one is used up sooner than the next can be drawn.
        tickets_at_once: how many tickets such blocks have at most: half of the lead over a peer's mark, so that a draw seldom
            waits for the peer.
        times_its_draw: what was drawn should then last so many times as long as its draw took.
        ready_tickets: how many tickets lie ready one by one, at most.
        lost_fetch_seconds: after how long a fetch is forgotten that never came back, as its event loop was closed.
        failed_fetch_seconds: how long a fetch ahead waits after one that failed.
        refill_wait_seconds: how long tasks wait for a block, as its server may be unresponsive: then the first of
            them draws another one.
        refills_waited_for: how many blocks a task waits for, one after the other, before it draws for itself.
        refill_loop_iterations: iterations of the event loop in which `refill_wait_seconds` pass, at least: while the loop
            is busy, the server is not what is slow.
    """

    idle_seconds: float = 30.0
    max_attempts: int = 30
    read_attempts: int = 2
    retry_pause_seconds: float = 0.05
    deadlock_pause_seconds: float = 0.005
    deadlock_doublings: int = 5
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
    tick_seconds: float = 0.001
    late_tick_seconds: float = 0.025
    lag_seconds: float = 0.005
    monitor_idle_seconds: float = 0.02
    unused_seconds: float = 5.0
    least_patience_seconds: float = 0.01
    first_patience_seconds: float = 0.1
    measure_seconds: float = 0.1
    remembered_draws: int = 1024
    few_draws: int = 20
    overdue_times: float = 1.5
    overdue_share: float = 0.99
    most_tokens: float = 3.0
    tokens_per_draw: float = 0.01
    ask_again_part: float = 0.4
    loop_iterations: int = 4
    move_seconds: float = 5.0
    redirect_pause_seconds: float = 0.005
    longest_redirect_pause_seconds: float = 0.05
    blocks_at_once: int = 64
    tickets_at_once: int = 25_000
    times_its_draw: int = 4
    ready_tickets: int = 1000
    lost_fetch_seconds: float = 10.0
    failed_fetch_seconds: float = 1.0
    refill_wait_seconds: float = 0.03
    refills_waited_for: int = 8
    refill_loop_iterations: int = 10


TIMING: Final = Timing()
