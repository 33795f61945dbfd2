"""Tests of `snowflake` that need no server."""
