"""What may pass when it is tried again, and how long that is waited for."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import TypeVar

from abprof.errors import AbprofError

TRIES = 4
LONGEST_WAIT = 60.0  # seconds; a server may ask for an hour, and a job that waits costs a runner
T = TypeVar("T")


class Passing(Exception):
    """What may be over at another try: a limit, an outage, a connection that was cut. `after`: seconds, if the server said."""

    def __init__(self, what: str, after: float | None = None) -> None:
        super().__init__(what)
        self.after = after


class TooLong(Exception):
    """The server finds the text too long."""


class Gone(AbprofError):
    """It was deleted, or the token may not see it: who saw it a moment ago looks again."""


def patiently(do: Callable[[], T], say: Callable[[str], None]) -> T:
    """`do` again where it may pass, with an end to the patience. Raises AbprofError."""
    for attempt in range(1, TRIES + 1):
        try:
            return do()
        except Passing as error:
            wait = error.after if error.after is not None else 2.0 ** (attempt - 1)
            if wait > LONGEST_WAIT:
                raise AbprofError(f"{error}, and asks to wait {wait:.0f} s", advice="try again then") from None
            if attempt == TRIES:
                raise AbprofError(f"{error}, {TRIES} times", advice="try again later") from None
            say(f"{error}; trying again in {wait:.0f} s")
            sleep(wait)
    raise AssertionError("the last try returns or raises")
