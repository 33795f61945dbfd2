"""What type checkers say; `make types` runs them here."""
