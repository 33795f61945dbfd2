"""The HTTP service: tickets for programs in any language (``pip install 'sqla-tickets[http]'``).

The command ``sqla-tickets serve`` runs it. `app` has the ASGI application, which any ASGI server can run:

    from sqla_tickets import TicketPool
    from sqla_tickets.http import Settings, create_app

    app = create_app(lambda: {"default": TicketPool(URLS)}, Settings())

`settings` says how it serves, and `tokens` who may do what. `service` draws, `monitor` asks the servers how they are,
`page` and ``page.html`` show that, and so does `metrics`. `problems` makes error responses, `openapi` describes it all,
and `server` runs it in uvicorn.
"""

from .app import create_app
from .settings import Settings
from .tokens import Tokens

__all__ = ["Settings", "Tokens", "create_app"]
