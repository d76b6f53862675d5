"""abprof whose way from a shard's program cuts its news once: `python -P cutting.py ARGS`, CUTS=SEED."""

from __future__ import annotations

import os
import random
import sys

from abprof.proc import Program

_rng = random.Random(int(os.environ["CUTS"]))
_after = [_rng.randrange(40)]  # lines that come through before
_real = Program.lines


def lines(self: Program) -> list[bytes]:
    """What came, but for one line."""
    came = _real(self)
    place, _after[0] = _after[0], _after[0] - len(came)
    if not 0 <= place < len(came):
        return came
    line = came[place]
    at = _rng.randrange(len(line))
    how = {
        "lost": [],
        "torn": [line[:at]],
        "spoilt": [line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]],
        "twice": [line, line],
    }
    return came[:place] + how[_rng.choice(sorted(how))] + came[place + 1 :]


Program.lines = lines  # type: ignore[method-assign]

from abprof.__main__ import main  # noqa: E402 - with the way that cuts

sys.exit(main())
