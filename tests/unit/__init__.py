"""Tests that need no server: each of a module or two, all of them within ten seconds.

SQLite is a library and no server: a test may use it, in memory or in a file, where that takes no time. What is
about a kind of database, about several processes or about time that passes belongs to ``tests/integration``.
"""
