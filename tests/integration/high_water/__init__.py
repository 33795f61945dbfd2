"""What the peers know of a sequence: high-water marks, and the servers that they fence."""
