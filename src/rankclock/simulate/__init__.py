"""Oscillators, networks and servos in virtual time."""
