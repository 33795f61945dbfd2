"""A photo site as Instagram's was: thousands of logical shards on a few PostgreSQL servers, any of which can be moved."""
