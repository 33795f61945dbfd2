"""A ticket table on one server, by plain statements over a cursor. Knows nothing of servers.

`layouts` draws: Flickr's REPLACE, or one counter. `inspection` finds, reads, creates and drops a table, `new_table`
is one to be created, `metadata` its comment, `context` what its statements need, `grants` what its users need.
The text of every statement is the dialect's: see `sqla_tickets.dialects`.
"""
