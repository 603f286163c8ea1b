"""The only code that touches this machine's clocks, NICs and daemons. Standard library only."""
