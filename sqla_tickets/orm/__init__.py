"""Tickets in SQLAlchemy models. Knows a pool by the Protocol `sequence.TicketSource` only.

`sequence` is `TicketSequence`, a column's declaration; `default`, its base, is what SQLAlchemy calls for a value.
`next_value` is a ticket in a statement. `flush` draws for all new objects of a flush at once, `preflush` sets ids
that need no server. `mappers` and `inheritance` distinguish columns that draw from columns that point to a row of the
base's table. `existing` prepares columns that are declared elsewhere. `insert_from_select` inserts the rows of a SELECT,
each with a ticket, as `numbered_rows`.
"""
