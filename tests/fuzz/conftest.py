from pathlib import Path

import pytest

from tests.fuzz.commands import Asker


@pytest.fixture
def asker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asker:
    return Asker(tmp_path, monkeypatch)
