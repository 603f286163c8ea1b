"""Parse, call, print, exit code. One file a verb."""
