"""Connections to one ticket server. Knows no sequence.

`timeouts` has what a draw waits for, in one place. `engines` makes the engine of a URL; `pool` keeps the
connections of a server, each a `connection`; `limit` is the queue for them. `identity` tells one database server
from another, `sockets` finds the socket under a driver, `failures` translates its errors.
"""
