"""What people paste: the output of time tools, daemon logs and configuration files, to typed values.

One module a tool. Every reader takes lines and gives a value or None; it never raises on any text and never guesses a
field that is not there. What a reader did not take stays unrecognised, and the caller says so.
"""
