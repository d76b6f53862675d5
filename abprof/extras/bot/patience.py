"""What may pass when it is tried again, and how long that is waited for; and what of an answer is believed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from time import sleep
from typing import TypeVar

from abprof.records.errors import AbprofError

TRIES = 4
LONGEST_WAIT = 60.0  # seconds; a server may ask for an hour, and a job that waits costs a runner
MOST_LISTED = (
    20_000  # comments, issues or others of one list; a server that names a next page for ever is no server of these
)
# What reading an answer raises that is another than the server's documents say.
UNREADABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
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


def listed(items: Iterable[T], where: str) -> Iterator[T]:
    """The items of all pages. Raises AbprofError where there is no end to them."""
    for number, item in enumerate(items):
        if number == MOST_LISTED:
            raise AbprofError(f"more than {MOST_LISTED} of them, which is no list", where=where)
        yield item


def seconds(text: object) -> float | None:
    """What a header says to wait, or until when; None for what is no plain number."""
    return float(str(text)) if re.fullmatch("[0-9]{1,12}", str(text), re.ASCII) else None


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
