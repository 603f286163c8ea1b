"""Before/after measurement."""
