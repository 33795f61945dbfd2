"""Runs ``python -m sqla_tickets.cli``."""

from . import main

main()
