"""High-water marks: what the ticket servers of a pool know of each other."""
