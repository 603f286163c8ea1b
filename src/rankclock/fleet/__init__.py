"""The only code that touches other machines."""
