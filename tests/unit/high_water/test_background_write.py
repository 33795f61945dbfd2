"""The one write to a peer in the background: when it has ended, and when another one may begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.high_water.peer import Peer


def nothing() -> None:
    """What a write in another thread would do."""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """The second of two files."""
    with TicketPool([f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]) as pool:
        yield pool._marks._peers[1]


@pytest.mark.parametrize("were_closed", [False, True])
def test_write_that_ends_leaves_the_next_one_running(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, were_closed: bool
) -> None:
    """The next one begins between the first one's last look for requests and its end."""
    write = peer._write
    takes = write.takes_request

    def take_and_let_another_begin(closed_at: int) -> bool:
        goes_on = takes(closed_at)
        if not goes_on:
            assert not peer.is_writing
            write.begin(nothing, lambda _: True)
        return goes_on

    monkeypatch.setattr(write, "takes_request", take_and_let_another_begin)
    write.begin(nothing, lambda _: True)
    if were_closed:
        peer.server.connections.close_all()
    peer._write_news([])
    assert peer.is_writing


@pytest.mark.parametrize("is_closed_after", [False, True])
def test_request_after_a_close_is_kept_by_a_write_from_before_it(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, is_closed_after: bool
) -> None:
    """A request from before the close is not."""
    rounds: list[int] = []

    def write_slowly(_: object) -> None:
        rounds.append(1)
        if len(rounds) == 1:
            steps: list[Callable[[], object]] = [
                peer.server.connections.close_all,
                partial(peer._begin, [], lambda _: True),
            ]
            for step in reversed(steps) if is_closed_after else steps:
                step()

    monkeypatch.setattr(peer, "_write_round", write_slowly)
    peer._write.begin(nothing, lambda _: True)
    peer._write_news([])
    assert len(rounds) == (1 if is_closed_after else 2)
    assert not peer.is_writing


def test_write_that_fails_has_ended(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(peer, "_write_round", fail)
    peer._write.begin(nothing, lambda _: True)
    with pytest.raises(KeyboardInterrupt):
        peer._write_news([])
    assert not peer.is_writing


def test_write_in_a_task_of_a_closed_loop_has_ended(peer: Peer) -> None:
    """Its task, which some registry keeps, never says so."""
    loop = asyncio.new_event_loop()
    peer._write.begin(nothing, lambda _: True, loop)
    assert peer.is_writing
    loop.close()
    assert not peer.is_writing
    peer._write.begin(nothing, lambda _: True)
    assert peer.is_writing
