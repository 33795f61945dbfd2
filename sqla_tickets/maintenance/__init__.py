"""Operations on ticket tables, for migrations and operators.

`operations` creates, raises, drops and converts; it renames and moves with `transfer`. `resize` adds and retires
servers; `status` has one record for each table. They use `handle`, one sequence's table on one server, and
`tombstones`, which close a table or redirect its clients; `redirect_paths` records a sequence's former pools and names.
"""
