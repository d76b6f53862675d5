"""For all tests: signals as a terminal leaves them."""

import signal

# A shell script that starts the suite in the background has it ignore ^C, and its children too, which the tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
