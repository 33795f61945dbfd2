"""A pool that nobody uses costs nothing, and a program ends while its ticket servers keep silent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sqla_tickets import TicketPool
from tests.support.draws import fresh_pair
from tests.support.servers import ServerFixtures

#: Seconds for a program to end in, on any machine; each server would be waited for twice as long.
PROMPT = 30.0

IDLE = """
import pathlib, sys, time
from sqla_tickets import TicketPool

def switches():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))

pool = TicketPool(sys.argv[1:])
for _ in range(100):
    pool.next_id("photos")
time.sleep(1)  # marks are written, and the monitor falls asleep
before, cpu = switches(), time.process_time()
time.sleep(3)
print(switches() - before, time.process_time() - cpu)
"""

#: Its servers stop where it says so, and it ends where its text does.
BEGINNING = """
import asyncio, atexit, sys, threading, time
from sqlalchemy.util import greenlet_spawn
from sqla_tickets import TicketError, TicketPool

def are_frozen():
    print("ready", flush=True)
    sys.stdin.readline()

def draw_on():
    while True:
        try:
            pool.next_id("photos")
        except TicketError:
            pass

pool = TicketPool(sys.argv[1:], timeout=60)
"""
ENDINGS = {
    "threads": """
for _ in range(4):
    pool.next_id("photos")
are_frozen()
for _ in range(4):
    threading.Thread(target=draw_on, daemon=True).start()
time.sleep(0.3)
""",
    "atexit": """
for _ in range(4):
    pool.next_id("photos")
atexit.register(pool.dispose)
are_frozen()
threading.Thread(target=draw_on, daemon=True).start()
time.sleep(0.3)
""",
    "tasks": """
async def main():
    for _ in range(4):
        await greenlet_spawn(pool.next_id, "photos")
    are_frozen()
    tasks = [asyncio.create_task(greenlet_spawn(pool.next_id, "photos")) for _ in range(8)]
    await asyncio.wait(tasks, timeout=0.3)

asyncio.run(main())
""",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_idle_pool_wakes_hardly_ever(servers: ServerFixtures) -> None:
    """A monitor that did not fall asleep would wake 40 times a second."""
    _, _, urls = fresh_pair(servers, "mariadb")
    addresses = [url.render_as_string(hide_password=False) for url in urls]
    with TicketPool(urls) as pool:
        pool.create_table("photos")
    command = [sys.executable, "-c", IDLE, *addresses]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    woken, cpu = map(float, told.stdout.split())
    assert woken < 40, told.stdout
    assert cpu < 0.5, told.stdout


@pytest.mark.parametrize("frozen", [1, 2], ids=["one frozen", "all frozen"])
@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_program_ends_while_servers_are_frozen(
    ending: str, driver: str, frozen: int, servers: ServerFixtures
) -> None:
    """Draws that wait, hedges and probes are under way; nobody waits for their time-outs."""
    if driver == "asyncmy" and ending != "tasks":
        pytest.skip("an async driver needs an event loop")
    pytest.importorskip(driver)
    first, second, urls = fresh_pair(servers, "mariadb")
    with TicketPool(urls) as pool:
        pool.create_table("photos")
    addresses = [
        url.set(drivername=f"mysql+{driver}").render_as_string(hide_password=False) for url in urls
    ]
    command = [sys.executable, "-c", BEGINNING + ENDINGS[ending], *addresses]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "ready\n", program.communicate()[1]
            for server in (first, second)[:frozen]:
                server.freeze()
            _, errors = program.communicate("\n", timeout=PROMPT)
        finally:
            program.kill()
            for server in (first, second)[:frozen]:
                server.thaw()
    assert program.returncode == 0, errors
    assert "Traceback" not in errors
