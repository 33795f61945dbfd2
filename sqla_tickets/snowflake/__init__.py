"""Ids that sort by time and need no ticket each: Snowflakes with leased node numbers, and Instagram's function.

`sequence` declares a column, `generator` makes its ids in this process, `layouts` divides their bits. `allocator`
leases the node number: `lease` is one lease, `lease_table` its row on a ticket server, `numbering` the numbers that a
server leases, `peers` the other servers' records of it, `reclaimer` frees numbers of dead processes, `leases` shows
leases to users, `timing` has the times. `instagram` is the function in PostgreSQL.
"""
