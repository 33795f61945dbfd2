"""The command ``sqla-tickets``, for whoever looks after ticket servers.

The way through the house: `commands` (what is typed) → `places` (which pools) → one module for each
thing to be known or done (`status`, `doctor`, `audit`, ...), which return data → `views` (how it reads).
"""
