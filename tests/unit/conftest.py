"""No server comes in here."""

from __future__ import annotations

import pytest

SERVERS = {"server_registry", "servers", "ticket_kind", "app_kind"}


@pytest.fixture(autouse=True)
def _needs_no_server(request: pytest.FixtureRequest) -> None:
    """Fail a test that asks for a server, before one is started."""
    asked = sorted(SERVERS & set(request.fixturenames))
    if asked:
        pytest.fail(f"a unit test has no {', '.join(asked)}: it belongs to tests/integration")
