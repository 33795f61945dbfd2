"""How much of this package's code one warm draw runs: the short path is the quick one, and the readable one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
from sqlalchemy import BigInteger, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.draw import hedging
from sqla_tickets.draw.timing import TIMING
from sqla_tickets.errors import TicketServerError
from tests.support.timing import set_timing

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11) or sys.gettrace() is not None,
    reason="Python 3.10 and coverage call more",
)


class Budget(NamedTuple):
    """The most Python calls of this package's own, and the most files that they stand in."""

    calls: int
    files: int


class Chain(list[str]):
    """The calls of this package's own functions, in order, as ``module:line function``."""

    @property
    def files(self) -> set[str]:
        return {call.partition(":")[0] for call in self}

    def check(self, budget: Budget) -> None:
        """See that it is no longer than that; its calls are the message when it is."""
        told = "\n".join(self)
        found = Budget(len(self), len(self.files))
        assert found.calls <= budget.calls, f"{found} instead of {budget}\n{told}"
        assert found.files <= budget.files, f"{found} instead of {budget}\n{sorted(self.files)}"


def chain_of(work: Callable[[], object]) -> Chain:
    """What ``work`` calls on this thread; what Python generates, as for a dataclass, counts too."""
    chain = Chain()

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        module, code = str(frame.f_globals.get("__name__")), frame.f_code
        if event == "call" and f"{module}.".startswith("sqla_tickets."):
            file = module.removeprefix("sqla_tickets.").replace(".", "/")
            chain.append(f"{file}:{code.co_firstlineno} {getattr(code, 'co_qualname', '')}")

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return chain


def warm_chain(work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> Chain:
    """The chain of ``work``, which draws once, on the server where it is longer.

    Draws alternate between the two servers. Of several on each, the shortest counts: what a stalled machine lets
    fall due, as marks to write, lengthens one of them, and longer code all.

    Args:
        work: what is measured.
        prepare: called before each time.
    """
    chains = []
    for _ in range(6):
        prepare()
        chains.append(chain_of(work))
    return max(min(chains[::2], key=len), min(chains[1::2], key=len), key=len)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TicketPool]:
    """Two SQLite files that have issued tickets just now, and have written all that peers are to know."""
    before = threading.enumerate()  # of other tests; a thread of an executor never ends
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]
    # on a busy machine it would fall asleep before the draw that is counted
    set_timing(monkeypatch, hedging, monitor_idle_seconds=60.0)
    with TicketPool(urls) as tickets:
        tickets.create_table("photos")
        tickets.next_ids("photos", 4)
        for _ in range(TIMING.few_draws):  # each of the first ones is measured
            tickets.next_id("photos")
        for thread in threading.enumerate():
            if thread not in before and "monitor" not in thread.name:
                thread.join(60)
        yield tickets


def test_next_id_without_block_stays_short(pool: TicketPool) -> None:
    warm_chain(lambda: pool.next_id("photos")).check(Budget(14, 7))


def test_next_id_from_buffer_is_one_call(pool: TicketPool) -> None:
    """That is the figure of `docs/understand/performance`: a ticket that is there costs no more than a ``pop``."""
    photos = TicketSequence("photos", block=1000)

    def use_up() -> None:  # after that, many tickets are ready for one call each
        for _ in range(400):
            pool.next_id(photos)

    chain = warm_chain(lambda: pool.next_id(photos), use_up)
    assert [call.split()[1] for call in chain] == ["TicketPool.next_id"]


class Base(DeclarativeBase):
    """Of its own, so that no other test's tables are created."""


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str] = mapped_column(String(80))


def test_flush_of_hundred_objects_stays_short(pool: TicketPool) -> None:
    engine = create_engine("sqlite://")
    with pool.attached(Base.metadata), Session(engine) as session:
        Base.metadata.create_all(engine)
        for title in ("warm", "up"):
            session.add(Photo(title=title))
            session.flush()
        photos = (Photo(title=str(n)) for n in count())

        def prepare() -> None:
            session.add_all(islice(photos, 100))
            for _ in pool.servers:
                pool.next_id("photos")  # which wakes the monitor

        warm_chain(session.flush, prepare).check(Budget(29, 12))


def test_draw_past_open_circuit_stays_short(pool: TicketPool) -> None:
    down = pool.servers[0]
    chain = warm_chain(
        lambda: pool.next_id("photos"),
        lambda: down.breaker.record_failure(TicketServerError("down")),
    )
    assert any(call.endswith("Failover._draw_elsewhere") for call in chain), chain
    chain.check(Budget(19, 8))
