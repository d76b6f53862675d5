"""What a command line left, for whoever reads of a test that failed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_MOST = 4000  # letters of each: an object of --json is longer


def show(argv: Sequence[str], code: int, out: str, err: str) -> None:
    """Print it. pytest keeps that to itself, and shows it where the test fails: a failure in CI has no other witness."""
    print(f"$ abprof {shlex.join(argv)}\nexit code {code}")
    for name, text in (("stdout", out), ("stderr", err)):
        if text.strip():
            cut = len(text) > _MOST
            print(f"{name}: {text[: _MOST // 2] + ' [...] ' + text[-_MOST // 2 :] if cut else text}")
