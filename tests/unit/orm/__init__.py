"""Tests of `orm` that need no server."""
