"""Tests of `cli` that need no server."""
