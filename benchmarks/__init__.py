"""What a ticket costs and what it buys, next to the alternatives, as ratios within one run.

``make bench`` starts its own servers on this machine, runs every part, and writes results, tables and plots into
``docs/understand/performance``. A *part* (`benchmarks.parts`) is one kind of work, a *peer* (`benchmarks.peers`) one way to get
ids or keys, a *comparison* one part with all of its sides, whose rounds are interleaved in a random order, so
that whatever drifts hits all sides alike.
"""
