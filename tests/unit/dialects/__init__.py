"""Tests of `dialects` that need no server."""
