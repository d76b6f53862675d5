"""Files in abprof's own folders, which other programs can change: bisections."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from abprof.extras import bisect
from abprof.records.errors import AbprofError
from abprof.system.console import View
from tests.bisect.test_pages import Measured, begun
from tests.bisect.test_search import line, slips
from tests.fuzz.commands import one_clear_line
from tests.fuzz.mutations import DEEP, hunt, many, texts_of


@pytest.mark.parametrize("count", [4, 1000])
@many
def test_any_bisection_is_gone_on_with_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, examples: int
) -> None:
    """The file of an interrupted or complete bisection: it is continued or refused."""
    world, bad = line(slips(20, {7: 3.0, 15: 5.0}), silent={9})
    monkeypatch.setattr(bisect, "measure", Measured(world, stop_after=count))
    with contextlib.suppress(KeyboardInterrupt):
        bisect.finish(begun(world, bad), tmp_path, View(quiet=True))
    whole = json.loads((tmp_path / bisect.FILE).read_bytes())
    monkeypatch.setattr(bisect, "measure", Measured(world, stop_after=0))

    def ask(data: bytes) -> None:
        folder = tmp_path / "one"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / bisect.FILE).write_bytes(data)
        try:
            known = bisect.read(folder)
            with contextlib.suppress(KeyboardInterrupt):
                known = bisect.finish(known, folder, View(quiet=True))
            known.decided, bisect.result(known)
        except AbprofError as error:
            one_clear_line(error)

    hunt(texts_of(whole), ask, examples)
    ask(b"[" * DEEP)
