"""Ids that sort by time."""
