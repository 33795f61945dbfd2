"""Planted defects are found: the checker can fail."""

from __future__ import annotations

import pytest

from .planted import DEFECTS, Options, defect_of, find


@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS])
def test_the_code_that_a_defect_changes_is_there(name: str) -> None:
    """Where it has moved, anchor the defect's texts anew."""
    assert defect_of(name).changes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["failover-gives-up", "fence-zero", "mark-lowered"])
def test_a_planted_defect_is_found_within_few_seeds(name: str) -> None:
    assert find(name, range(1, 21), Options(seconds=4.0, processes=8, servers=3))
