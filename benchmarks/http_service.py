"""``python -m benchmarks.http_service``: requests per second of the HTTP service, and of a bare Starlette route.

Both answer the same JSON in uvicorn. wrk asks them in turn, in short slices, so that both meet the same machine. In
the middle one of the two ticket servers is killed, and started again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from sqla_tickets import TicketPool
from tests.support.http_service import HOST, HTTPProcess, call, wait_for
from tests.support.servers import ServerRegistry
from tests.support.servers.ports import free_port

#: The service's own answer, without the service.
BARE = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def tickets(request):
    name = request.path_params["name"]
    block = {"first": 123456, "step": 2, "count": 1}
    return JSONResponse({"sequence": name, "tickets": [block]}, headers={"Cache-Control": "no-store"})

app = Starlette(routes=[Route("/v1/sequences/{name}/tickets", tickets, methods=["POST"])])
"""
POST = 'wrk.method = "POST"\n'
PATH = "/v1/sequences/photos/tickets"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_service", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for both together")
    parser.add_argument("--slice", type=int, default=3, help="seconds of one slice")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--query", default="", help="such as ?n=100")
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("This needs wrk: apt-get install wrk")
    server_registry = ServerRegistry(["mariadb"])
    try:
        with tempfile.TemporaryDirectory() as folder:
            return compare(server_registry, Path(folder), given)
    finally:
        server_registry.close()


def compare(server_registry: ServerRegistry, folder: Path, given: argparse.Namespace) -> int:
    """Ask both in turn; 1 where a request failed."""
    servers = [server_registry.new_mariadb(), server_registry.new_mariadb()]
    for server in servers:
        server.create_database("http")
    urls = [server.url("http") for server in servers]
    with TicketPool(urls) as pool:
        pool.create_table("photos")
    (folder / "post.lua").write_text(POST)
    (folder / "bare.py").write_text(BARE)
    service = HTTPProcess(urls, folder)
    service.start()
    bare_port = free_port()
    options = [
        "--port",
        str(bare_port),
        "--log-level",
        "warning",
        "--http",
        "httptools",
        "--no-access-log",
    ]
    bare = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "bare:app", "--app-dir", str(folder), *options]
    )
    wait_for(lambda: _answers(bare_port), lambda: "the bare route did not start")
    rates: dict[str, list[float]] = {"service": [], "bare": []}
    used: dict[str, list[float]] = {"service": [], "bare": []}
    processes = {"service": psutil.Process(service.pids[0]), "bare": psutil.Process(bare.pid)}
    failed = 0
    slices = max(2, round(given.seconds / given.slice / 2))
    try:
        for number in range(slices):
            if number == slices // 2:
                servers[0].kill()
                print("killed a ticket server")
            elif number == slices * 3 // 4:
                servers[0].start()
                print("started it again")
            for name, port in (("service", service.port), ("bare", bare_port)):
                before = _cpu_seconds(processes[name])
                rate, errors = _wrk(folder, port, given)
                rates[name].append(rate)
                seconds = _cpu_seconds(processes[name]) - before
                used[name].append(seconds / (rate * given.slice) * 1e6)
                failed += errors
            print(f"{rates['service'][-1]:,.0f} of {rates['bare'][-1]:,.0f} requests/s", flush=True)
    finally:
        service.kill()
        bare.terminate()
        bare.wait()
    ratio = statistics.median(a / b for a, b in zip(rates["service"], rates["bare"], strict=True))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(
        f"service {medians['service']:,.0f}/s, bare route {medians['bare']:,.0f}/s,"
        f" ratio {ratio:.2f} (median of {slices} pairs of slices), {failed} failed"
    )
    # what a busy machine changes less
    costs = {name: statistics.median(found) for name, found in used.items()}
    print(
        f"processor time of a request: service {costs['service']:.0f} us, bare route {costs['bare']:.0f} us,"
        f" ratio {costs['bare'] / costs['service']:.2f}"
    )
    return int(failed > 0)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _answers(port: int) -> bool:
    try:
        return call(port, PATH, "POST").status == 200
    except OSError:
        return False


def _wrk(folder: Path, port: int, given: argparse.Namespace) -> tuple[float, int]:
    """Requests per second of one slice, and how many failed."""
    done = subprocess.run(
        ["wrk", "-t1", f"-c{given.connections}", f"-d{given.slice}s", "-s", str(folder / "post.lua"),
         f"http://{HOST}:{port}{PATH}{given.query}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    failed = sum(int(n) for n in re.findall(r"Non-2xx or 3xx responses: (\d+)", done.stdout))
    for errors in re.findall(r"Socket errors: (.*)", done.stdout):
        failed += sum(map(int, re.findall(r"\d+", errors)))
    assert rate, done.stdout
    return float(rate[1]), failed


if __name__ == "__main__":
    sys.exit(main())
