"""Ticket servers as they are run in earnest: clusters, proxies and replicas, and what is done to them."""
