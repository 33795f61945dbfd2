"""An error about a URL does not show its password."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_tickets import TicketError, TicketPool


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "wrong",
    [
        ("mysql+pymysql://tickets:hunter2@h/t",),
        b"mysql+pymysql://tickets:hunter2@h/t",
        {"url": "mysql+pymysql://tickets:hunter2@h/t"},
        "tickets:hunter2@h/t",
        "mysql+pymysql//tickets:hunter2@h/t",
        "mysql+pymysql://tickets:hunter2@h:port/t",
        "mysql+nosuchdriver://tickets:hunter2@h/t",
        "oracle9://tickets:hunter2@h/t",
    ],
)
def test_what_is_no_url(wrong: str) -> None:
    with pytest.raises(TicketError) as caught:
        TicketPool([wrong])
    for error in chain(caught.value):
        assert "hunter2" not in f"{error} {error!r}"


@pytest.mark.parametrize("scheme", ["mysql+nosuchdriver", "oracle9"])
def test_an_unknown_driver_is_no_matter_of_the_password(scheme: str) -> None:
    with pytest.raises(TicketError, match=r"dialect or the driver .* is unknown") as caught:
        TicketPool([f"{scheme}://tickets@h/t"])
    assert "%40" not in str(caught.value)


def test_a_warning_about_duplicate_servers() -> None:
    url = "mysql+pymysql://tickets:hunter2@h/t"
    with pytest.warns(match="more than once") as told:
        TicketPool([url, url])
    assert "hunter2" not in str(told[0].message)
