"""All servers are down: draws fail soon, and leave the machine the time to start the servers again."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier, Timer

import pytest

from sqla_tickets import NoTicketServer, TicketPool, TicketServerError
from sqla_tickets.draw import circuit_breaker, failover
from tests.support.draws import assert_unique, fresh_pair, mysql_like, run
from tests.support.servers import ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy
from tests.support.timing import set_timing

THREADS = 12


@contextmanager
def pool_of_one(
    servers: ServerFixtures, timeout: float = 1
) -> Iterator[tuple[TicketPool, TcpProxy]]:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with (
        TcpProxy(url.port) as proxy,
        TicketPool([url.set(port=proxy.port)], timeout=timeout) as pool,
    ):
        pool.create_table("photos")
        yield pool, proxy


def go_down(proxy: TcpProxy) -> None:
    proxy.do(Fault("close"))


def test_draws_that_fail_together_have_one_of_them_ask(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, circuit_breaker, one_trial_seconds=0.5)
    with pool_of_one(servers, timeout=5) as (pool, proxy), ThreadPoolExecutor(THREADS) as threads:
        ids = [pool.next_id("photos")]
        go_down(proxy)
        with pytest.raises(NoTicketServer):
            pool.next_id("photos")
        before, together = proxy.connections, Barrier(THREADS)

        def draw(_: int) -> str:
            together.wait()
            with pytest.raises(NoTicketServer) as caught:
                pool.next_id("photos")
            return str(caught.value)

        said = list(threads.map(draw, range(THREADS)))
        assert proxy.connections - before < THREADS / 2
        assert all(f"127.0.0.1:{proxy.port}" in text for text in said)
        proxy.do(Fault())
        ids += threads.map(lambda _: pool.next_id("photos"), range(THREADS))
    assert_unique(ids)


def test_what_was_found_before_a_draw_began_does_not_fail_it(servers: ServerFixtures) -> None:
    """A server may be back a moment after somebody was refused."""
    with pool_of_one(servers) as (pool, proxy):
        ids = [pool.next_id("photos")]
        for _ in range(5):
            go_down(proxy)
            for _ in range(3):
                with pytest.raises(NoTicketServer):
                    pool.next_id("photos")
            proxy.do(Fault())
            ids.append(pool.next_id("photos"))
    assert_unique(ids)


def test_what_was_found_while_a_draw_waited_for_another_server_does_not_fail_it(
    servers: ServerFixtures,
) -> None:
    with pool_of_one(servers) as (pool, proxy):
        pool.next_id("photos")
        began = time.monotonic()
        go_down(proxy)
        for _ in range(2):  # the first one finds its connection cut off
            with pytest.raises(NoTicketServer):
                pool.next_id("photos")
        proxy.do(Fault())
        asked = next(failover.servers_to_try(pool.servers, "photos", 0, began, {}), None)
        assert asked is pool.servers[0]


def test_a_sequence_that_a_server_cannot_serve_fails_no_draw_of_another(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table's trouble may look like its server's, as no list of the error codes is complete."""
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with TicketPool([url]) as pool:
        pool.create_table("photos")
        pool.create_table("albums")
        run(url, "ALTER TABLE albums DISCARD TABLESPACE")

        def draw_an_album(_: float = 0.0) -> None:
            set_timing(monkeypatch, circuit_breaker, one_trial_seconds=0)
            with pytest.raises(NoTicketServer):
                pool.next_id("albums")
            set_timing(monkeypatch, circuit_breaker, one_trial_seconds=60)

        draw_an_album()
        draw_an_album()
        monkeypatch.setattr(failover, "pause", draw_an_album)  # as another thread does meanwhile
        assert pool.next_id("photos")


def test_servers_that_refuse_and_frozen_ones_are_waited_for_at_the_same_time(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    first, second, urls = fresh_pair(servers, "mariadb")
    with (
        TcpProxy(first.port) as refusing,
        TcpProxy(second.port) as frozen,
        TicketPool([urls[0].set(port=refusing.port), urls[1].set(port=frozen.port)]) as pool,
    ):
        pool.create_table("photos")
        frozen.do(Fault("freeze"))
        pool.servers[1].breaker.record_failure(TicketServerError("unresponsive"), timed_out=True)
        go_down(refusing)
        for _ in range(2):  # the first one finds its connection cut off
            with pytest.raises(NoTicketServer):
                pool.next_id("photos")
        set_timing(monkeypatch, circuit_breaker, one_trial_seconds=60)
        monkeypatch.setattr(failover, "pause", pause)
        with pytest.raises(NoTicketServer):
            pool.next_id("photos")
        longest = max(server.timeouts.timeout_seconds for server in pool.servers)
        assert 0 < sum(pauses[:-1]) < longest


def test_an_unresponsive_server_has_a_timeout_to_answer_once_the_last_other_one_has_failed(
    servers: ServerFixtures,
) -> None:
    """A server that was frozen has much to catch up with: on a busy machine it takes half a second."""
    first, second, urls = fresh_pair(servers, "mariadb")
    with TcpProxy(first.port) as refusing, TcpProxy(second.port) as frozen:
        behind = [urls[0].set(port=refusing.port), urls[1].set(port=frozen.port)]
        with TicketPool(behind, timeout=10) as pool:
            pool.create_table("photos")
            frozen.do(Fault("freeze"))
            go_down(refusing)
            pool.servers[1].breaker.record_failure(TicketServerError("hangs"), timed_out=True)
            thaw = Timer(0.7, frozen.do, [Fault()])
            thaw.start()
            ticket = pool.next_id("photos")
            thaw.join()
    assert ticket % 2 == 0


class Variable:
    """Of who calls a pool."""


def test_an_outage_that_is_over_keeps_nobody_s_variables(
    servers: ServerFixtures, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "sqla_tickets")  # else it keeps the errors
    with pool_of_one(servers) as (pool, proxy):
        pool.next_id("photos")

        def meet_an_outage() -> weakref.ref[Variable]:
            variable = Variable()
            go_down(proxy)
            for _ in range(3):
                with suppress(NoTicketServer):
                    pool.next_id("photos")
            return weakref.ref(variable)

        kept = meet_an_outage()
        proxy.do(Fault())
        pool.next_id("photos")
        gc.collect()
        assert kept() is None
