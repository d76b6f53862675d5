"""The sandbox of this machine, for tests that need a sandbox that starts."""

import pytest

from abprof.builds import sandbox as contain
from abprof.records.errors import AbprofError


def _found() -> contain.Sandbox | str:
    try:
        return contain.find()
    except AbprofError as refused:
        return refused.what


FOUND = _found()
needs_sandbox = pytest.mark.skipif(isinstance(FOUND, str), reason=f"nothing can be contained here: {FOUND}")


def sandbox() -> contain.Sandbox:
    assert isinstance(FOUND, contain.Sandbox)
    return FOUND
