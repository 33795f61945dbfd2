"""Thousands of processes on a few ticket servers: what they get, and what the loss of servers costs."""
