"""abprof with a wall clock that jumps: `python -P jumping.py ARGS`, JUMPS=SEED. The monotonic clock does not, as on a machine."""

from __future__ import annotations

import datetime
import os
import random
import sys
import time

MINUTE, YEAR = 60.0, 365.25 * 86400
_real = time.time
_rng = random.Random(int(os.environ["JUMPS"]))
_off = [0.0]


def jumping() -> float:
    """The time, to which something is added now and then."""
    if _rng.random() < 0.3:
        _off[0] = _rng.choice((0.0, -0.5, MINUTE, -MINUTE, 61 * MINUTE, -61 * MINUTE, YEAR, -YEAR))
    return _real() + _off[0]


class Jumping(datetime.datetime):
    """`now` follows the jumping clock."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Jumping:
        return cls.fromtimestamp(jumping(), tz)


time.time = jumping
datetime.datetime = Jumping  # type: ignore[misc]

from abprof.__main__ import main  # noqa: E402 - what it imports must find the jumping clock

sys.exit(main())
