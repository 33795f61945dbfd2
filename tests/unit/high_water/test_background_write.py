"""The one write to a peer in the background: when it has ended, and when another one may begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.connect.pool import Connections
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

    def take_and_let_another_begin(*, is_wanted: bool = True) -> bool:
        goes_on = takes(is_wanted=is_wanted)
        if not goes_on:
            assert not peer.is_writing
            write.begin(nothing, lambda _: True)
        return goes_on

    monkeypatch.setattr(write, "takes_request", take_and_let_another_begin)
    monkeypatch.setattr(Connections, "were_closed", were_closed)
    write.begin(nothing, lambda _: True)
    peer._write_news([])
    assert peer.is_writing


def test_write_that_fails_has_ended(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(peer, "_write_round", fail)
    peer._write.begin(nothing, lambda _: True)
    with pytest.raises(KeyboardInterrupt):
        peer._write_news([])
    assert not peer.is_writing
