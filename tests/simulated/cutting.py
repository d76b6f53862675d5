"""abprof whose way from a shard's program cuts its news once: `python -P cutting.py ARGS`, CUTS=SEED.

With CUTS=ended the first line that tells a shard's end is lost.
"""

from __future__ import annotations

import os
import random
import sys

from abprof.fleet.executors import Executor

_end = os.environ["CUTS"] == "ended"
_rng = random.Random(0 if _end else int(os.environ["CUTS"]))
_after = [_rng.randrange(40)]  # lines that come through before
_real = Executor._new_lines


def lines(self: Executor, number: int) -> list[bytes]:
    """What came, but for one line."""
    came = _real(self, number)
    if _end:
        return _without_the_first_end(came)
    place, _after[0] = _after[0], _after[0] - len(came)
    if not 0 <= place < len(came):
        return came
    line = came[place]
    at = _rng.randrange(len(line))
    how = {
        "torn": [line[:at]],
        "spoilt": [line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]],
    }
    return came[:place] + how[_rng.choice(sorted(how))] + came[place + 1 :]


def _without_the_first_end(came: list[bytes]) -> list[bytes]:
    for line in came if _after else []:
        if b'"ended":' in line:
            _after.clear()
            return [one for one in came if one is not line]
    return came


Executor._new_lines = lines  # type: ignore[method-assign]

from abprof.__main__ import main  # noqa: E402 - with the way that cuts

sys.exit(main())
