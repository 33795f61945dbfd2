"""A driver's message is quoted without the password, and with all else that it says."""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from sqla_tickets.connect.failures import without_password


@pytest.mark.parametrize(
    ("password", "said", "quoted"),
    [
        ("t", "Access denied for user 'tickets'@'t1'", "Access denied for user 'tickets'@'t1'"),
        ("t", "dsn: host=t1 password=t user=tickets", "dsn: host=t1 password=*** user=tickets"),
        ("app", "user 'tickets', database 'app-1'", "user 'tickets', database 'app-1'"),
        ("tickets", "password 'tickets'", "password '***'"),
        ("hunter2-4711", "xhunter2-4711x", "x***x"),
        ("tickets-of-app-1", "'tickets-of-app-1' for 'app-1'", "'***' for 'app-1'"),
        ("a/b", "mysql://tickets:a%2Fb@t1/app-1", "mysql://tickets:***@t1/app-1"),
        (None, "None", "None"),
    ],
)  # fmt: skip
def test_only_the_password_is_replaced(password: str | None, said: str, quoted: str) -> None:
    url = URL.create("mysql", "tickets", password, "t1", database="app-1")
    assert without_password(said, url) == quoted
