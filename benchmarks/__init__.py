"""What a ticket costs and what it buys, as ratios within one run.

``make bench`` starts its own servers on this machine and prints one table per comparison. Rounds are
interleaved, in a random order, so that whatever drifts hits all sides alike.
"""
