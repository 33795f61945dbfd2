"""Ids without a ticket each, which sort by time: Snowflakes with leased node numbers, and Instagram's function.

`sequence` declares a column, `generator` makes its ids in this process, `layouts` says which bits are what.
`allocator` leases the node number: `lease` is one, `lease_table` its row on a ticket server, `numbering` which numbers
a server leases, `peers` what the other servers know of one, `reclaimer` frees those of dead processes, `leases` shows them to users. `instagram` is
the function in PostgreSQL.
"""
