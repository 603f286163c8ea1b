"""Traces and logs of all ranks on one timeline."""
