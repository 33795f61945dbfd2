"""The ASGI application: its routes, access checks and responses."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..concurrency import run_in_greenlet
from ..errors import TicketArgumentError
from ..pool import TicketPool
from ..status.measure import LARGEST_IN_JAVASCRIPT
from . import openapi, page
from .monitor import Monitor
from .problems import Problem, respond, respond_to_a_defect
from .service import Service
from .settings import Settings, is_loopback
from .tokens import EVERYTHING, STATUS

if TYPE_CHECKING:
    from .metrics import Metrics

_NUMBER: Final = re.compile("[0-9]{1,9}")
_PARAMETERS: Final = {"n", "numbers"}
_NOT_STORED: Final = {"Cache-Control": "no-store"}
#: JSONResponse makes an encoder for each response.
_encode = json.JSONEncoder(separators=(",", ":")).encode
#: Pools by their names. It is called twice in each worker: one of them draws, the other one only asks.
LoadPools = Callable[[], Mapping[str, TicketPool]]


class _NameConvertor(PathConvertor):
    """The name of a sequence in a path: any text, as ``%2F`` has become ``/`` before a route is chosen."""

    regex = r"(?s:.+)"


register_url_convertor("ticket_sequence", _NameConvertor())


def create_app(load_pools: LoadPools, settings: Settings | None = None) -> Starlette:
    """Create the application. It creates its pools when the server starts it, so that no pool crosses a fork.

    Args:
        load_pools: returns new pools, by name.
        settings: the settings of the service.
    """
    endpoints = _Endpoints(load_pools, settings or Settings())
    app = Starlette(
        routes=[
            Route(
                "/v1/sequences/{name:ticket_sequence}/tickets", endpoints.tickets, methods=["POST"]
            ),
            Route("/", endpoints.status_page),
            Route("/health", endpoints.health),
            Route("/ready", endpoints.ready),
            Route("/metrics", endpoints.metrics),
            Route("/openapi.json", endpoints.document),
        ],
        exception_handlers={404: respond, 405: respond, Problem: respond, 500: respond_to_a_defect},
        lifespan=endpoints.lifespan,
    )
    app.router.redirect_slashes = (
        False  # a client gets the problem, not a redirect that it may follow by GET
    )
    return app


class _Endpoints:
    def __init__(self, load_pools: LoadPools, settings: Settings) -> None:
        self._load_pools, self._settings = load_pools, settings
        self._started: Service | None = None
        self._metrics: Metrics | None = None

    @property
    def _service(self) -> Service:
        """The service of this worker.

        Raises:
            TicketArgumentError: the application was not started.
        """
        if self._started is None:
            raise TicketArgumentError(
                "the application was not started: a parent application does not start those that it mounts, so its"
                " own lifespan must enter app.router.lifespan_context(app)"
            )
        return self._started

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        """The life of a worker: it creates its pools at the start, and closes them after the last request."""
        settings, pools, asking = self._settings, self._load_pools(), self._load_pools()
        monitor = Monitor(settings.pool_of(asking), settings.sequences)
        self._started = Service(pools, monitor, settings)
        self._metrics = _metrics_of(pools.values(), is_one_of_many=settings.workers > 1)
        try:
            yield
        finally:  # buffered tickets become gaps
            await monitor.close()
            for pool in [*pools.values(), *asking.values()]:
                await run_in_greenlet(pool.dispose)

    # -- tickets

    async def tickets(self, request: Request) -> Response:
        """POST /v1/sequences/{name}/tickets."""
        name: str = request.path_params["name"]
        try:
            # the scope of the status permits no draw, even of a sequence of that name
            self._check_may(request, {name, EVERYTHING} - {STATUS})
            await _check_has_no_body(request, self._settings.deadline_seconds)
            n, numbers = self._arguments(request)
            blocks = await self._service.reserve(name, n)
            records = [_record(block, numbers) for block in blocks]
            response = Response(
                _encode({"sequence": name, "tickets": records}),
                headers=_NOT_STORED,
                media_type="application/json",
            )
        except Problem as problem:
            self._count(name, problem.status_code)
            raise
        except Exception:
            self._count(name, 500)
            raise
        self._count(name, 200, n)
        return response

    def _arguments(self, request: Request) -> tuple[int, str | None]:
        """How many tickets a request asks for, and the format of their numbers.

        Raises:
            Problem: the arguments are invalid.
        """
        if not request.scope["query_string"]:
            return 1, None
        given, most = request.query_params, self._settings.most
        names = [name for name, _ in given.multi_items()]
        if len(names) != len({*names} & _PARAMETERS):
            raise Problem(
                400,
                "invalid_parameters",
                "The only parameters are n and numbers, each at most once.",
                "Correct the names of the parameters, and send each once.",
            )
        n, numbers = given.get("n", "1"), given.get("numbers")
        if not _NUMBER.fullmatch(n) or not 1 <= int(n) <= most:
            raise Problem(
                400,
                "invalid_n",
                f"n must be a whole number from 1 to {most}.",
                f"Ask for 1 to {most} tickets at a time.",
            )
        if numbers not in (None, "integer", "string"):
            raise Problem(
                400,
                "invalid_numbers",
                "numbers must be integer or string.",
                "Omit numbers, or send numbers=integer or numbers=string.",
            )
        return int(n), numbers

    def _count(self, name: str, code: int, tickets: int = 0) -> None:
        if self._metrics is not None:
            known = name if name in self._service.monitor.names else ""
            self._metrics.count(known, code, tickets)

    # -- who may do what

    def _check_may(
        self, request: Request, scopes: set[str], *, takes_password: bool = False
    ) -> None:
        """Check that a request may use a sequence, or the status.

        Args:
            request: the request.
            scopes: each of them permits it.
            takes_password: whether a browser may send the token as its password.

        Raises:
            Problem: it may not.
        """
        tokens = self._settings.tokens
        if not tokens:
            _check_not_from_a_page(request)
            if self._settings.is_local:
                _check_host(request)
            return
        authorization = request.headers.get("authorization", "")
        found = tokens.scopes_of(authorization, takes_password=takes_password)
        if found is None:
            scheme = "Basic" if takes_password else "Bearer"  # a browser asks for a password
            raise Problem(
                401,
                "unauthorized",
                "This request needs a valid token.",
                "Send the header Authorization: Bearer TOKEN."
                + " A browser sends the token as the password." * takes_password,
                {"WWW-Authenticate": f'{scheme} realm="sqla-tickets"'},
            )
        if found.isdisjoint(scopes):
            raise Problem(
                403,
                "forbidden",
                "The token does not permit this request.",
                "Ask an operator to add the sequence, or @status, to the token's line in the tokens file.",
            )

    def _check_may_see(self, request: Request) -> None:
        if not self._settings.is_status_public:
            self._check_may(request, {STATUS, EVERYTHING}, takes_password=True)

    # -- operation

    async def status_page(self, request: Request) -> Response:
        """GET /."""
        self._check_may_see(request)
        return page.response(self._service.pool, await self._service.statuses())

    async def health(self, request: Request) -> Response:
        """GET /health: the process answers."""
        return JSONResponse({"status": "ok"}, headers=_NOT_STORED)

    async def ready(self, request: Request) -> Response:
        """GET /ready: tickets are issued."""
        if not await self._service.is_ready():
            raise Problem(
                503,
                "not_ready",
                "No sequence has tickets now.",
                "Ask an operator to check the status page, or sqla-tickets status.",
            )
        return JSONResponse({"status": "ready"}, headers=_NOT_STORED)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        self._check_may_see(request)
        if self._metrics is None:
            raise Problem(
                501,
                "no_metrics",
                "prometheus_client is not installed.",
                "pip install 'sqla-tickets[prometheus]'",
            )
        text, content_type = self._metrics.scrape(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    async def document(self, request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(openapi.document(self._settings.most))


def _metrics_of(pools: Iterable[TicketPool], *, is_one_of_many: bool) -> Metrics | None:
    """The metrics; None if their package is not installed."""
    try:
        from .metrics import Metrics  # noqa: PLC0415  # an extra of its own
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        return None
    return Metrics(pools, is_one_of_many=is_one_of_many)


def _record(block: range, numbers: str | None) -> dict[str, int | str]:
    """A block of tickets as a record: the first one, the step, and the count.

    Raises:
        Problem: a number is not safe in every language, and the client has not asked for it. The tickets are gaps.
    """
    if numbers is None and block[-1] > LARGEST_IN_JAVASCRIPT:
        raise Problem(
            400,
            "large_numbers",
            "The tickets are above 2**53 - 1, where some languages round JSON numbers.",
            "Send numbers=string, or numbers=integer if the program reads 64-bit integers.",
        )
    first = str(block[0]) if numbers == "string" else block[0]
    return {"first": first, "step": block.step, "count": len(block)}


async def _check_has_no_body(request: Request, deadline_seconds: float) -> None:
    """Check that a request has no body: what is in it would not be read.

    Raises:
        Problem: it has one, or announces one that does not end by the deadline, or that its client breaks off.
    """
    headers = request.headers
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return
    with contextlib.suppress(ClientDisconnect, TimeoutError), anyio.fail_after(deadline_seconds):
        if not await anext(request.stream()):  # chunks may come to nothing
            return
    raise Problem(
        400,
        "invalid_parameters",
        "A request for tickets has no body; this one has.",
        "Send n and numbers in the URL, as in ?n=5.",
    )


def _check_not_from_a_page(request: Request) -> None:
    """Check that no web page sent a request for tickets, as a browser on this machine may show any site.

    Raises:
        Problem: a page sent it.
    """
    if request.method == "POST" and any(name == b"origin" for name, _ in request.scope["headers"]):
        raise Problem(
            403,
            "forbidden",
            "A web page may not draw tickets from a service without tokens.",
            "Call it from a program, or serve with tokens.",
        )


def _check_host(request: Request) -> None:
    """Check that a request names this machine: another site's name may lead to 127.0.0.1, too (DNS rebinding).

    Raises:
        Problem: it does not.
    """
    for name, value in request.scope["headers"]:
        if name == b"host" and not _is_own(value):
            raise Problem(
                403,
                "forbidden",
                "The Host header names another machine.",
                "Use localhost or 127.0.0.1. Behind a reverse proxy, serve with tokens, or with --no-tokens.",
            )


@functools.lru_cache(maxsize=64)
def _is_own(host: bytes) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:
        return False
