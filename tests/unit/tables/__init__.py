"""Tests of `tables` that need no server."""
