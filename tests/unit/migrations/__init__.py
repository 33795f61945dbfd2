"""Tests of `alembic_ext` that need no server."""
