"""Parse durations and percentages; write counts with their nouns, and changes of time."""

from __future__ import annotations

import re

from abprof.records.errors import AbprofError


def seconds(text: str, where: str) -> float:
    """Return the seconds in `text`, like "90", "90s", "10m" or "1.5h". Raises AbprofError (with `where`) if invalid."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    if not match or float(match[1]) <= 0:
        raise AbprofError(f"{text!r} is not a duration", where=where, advice="write 90s, 10m or 1.5h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def percent(text: str, where: str) -> float:
    """Return the number in `text`, like "1.5" or "1.5%". Raises AbprofError (with `where`) unless 0 < value < 1000."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value < 1000:
        raise AbprofError(f"{text!r} is not a positive percentage", where=where, advice="write 1.5 or 1.5%")
    return value


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: `1 cell`, `2 cells`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def signed(pct: float, places: int = 1) -> str:
    """Return a change of time as text: `2.1 % slower`, `6.2 % faster`, or `~` if the change rounds to 0."""
    text = f"{abs(pct):.{places}f}"
    return f"{text} % {'slower' if pct > 0 else 'faster'}" if float(text) else "~"


def interval(low: float, high: float, places: int = 1) -> str:
    """Return an interval of changes as text: `1.9 to 2.4 % slower`, or `0.2 % faster to 0.4 % slower`."""
    if low >= 0:
        return f"{low:.{places}f} to {high:.{places}f} % slower"
    if high <= 0:
        return f"{-high:.{places}f} to {-low:.{places}f} % faster"
    return f"{-low:.{places}f} % faster to {high:.{places}f} % slower"


def span(seconds: float) -> str:
    """Return a duration as text: `90 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
