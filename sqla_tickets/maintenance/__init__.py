"""Operations on ticket tables, for migrations and operators.

`operations` has create, raise, drop, convert, rename and move; `resize` more servers or fewer; `status` one record
for each table. They work by `handle`, one sequence's table on one server, and `tombstones`, which close a table or
redirect its clients; `redirect_paths` tells where a sequence has been.
"""
