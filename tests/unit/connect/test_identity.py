"""Which runs of a server's members are one generation, between which its numbers cannot fall back."""

from __future__ import annotations

import pytest

from sqla_tickets.connect.identity import Identity, KnownRuns


@pytest.mark.parametrize(("view", "is_one"), [("3 a,b", True), ("", False)])
def test_generation_of_two_members_needs_their_view(view: str, is_one: bool) -> None:
    """A group of MySQL's does not show its view: begun anew from a member that was behind, it looks the same."""
    first, second = (Identity(name, 1.0, "a cluster", view) for name in ("a", "b"))
    both = KnownRuns(first).followed_by(second, is_new=True)
    assert both.has(second, is_new=True)
    assert both.has(first, is_new=True) is is_one
