"""Tests of `connect` that need no server."""
