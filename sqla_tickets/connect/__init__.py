"""Connections to one ticket server. Knows nothing of sequences.

`timeouts` has all time limits of a draw. `engines` makes the engine of a URL; `pool` keeps the connections of a
server, each a `connection` with a `cursor`; `limit` is the queue for them. `identity` distinguishes database servers,
`sockets` finds the socket under a driver, `ok_packets` reads a ticket from it, `failures` translates its errors.
"""
