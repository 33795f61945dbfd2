"""Tests of `high_water` that need no server."""
