"""High-water marks: what the ticket servers of a pool know of each other.

`service` decides when marks are read and written. `peer` is one server with its marks, `store` reads and writes them
there, and `statements` has the SQL. `sequence_marks` is for the operations that create, raise or drop tables.
`credible` judges marks that look forged, `joined` knows where servers with a larger stride joined, `duplicates` finds
two addresses of one server, `timing` has the times and sizes.
"""
