"""The tests of sqla_tickets, on real database servers."""
