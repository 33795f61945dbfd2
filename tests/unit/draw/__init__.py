"""Tests of `draw` that need no server."""
