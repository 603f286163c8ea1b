"""For all tests: signals as a terminal gives them."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Background jobs of a shell start with SIGINT ignored, and so does what they start: nothing could be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
