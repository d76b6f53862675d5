"""A worker's environment: the variables it gets, and those it does not get."""

from __future__ import annotations

import pytest

from abprof.builds import environment
from abprof.records.errors import AbprofError
from abprof.system.config_file import fill

MINE = {
    "PATH": "/bin", "HOME": "/home/me", "EDITOR": "vi", "GITHUB_TOKEN": "x", "MY_API_KEY": "x",
    "DB_URL": "postgres://me:secret@host/db", "SOME": "ghp_0123456789", "PYTHONPATH": "/other/tree",
    "GIT_DIR": "/repo/.git", "CUDA_HOME": "/usr/local/cuda",
}  # fmt: skip


def test_by_hand_everything_but_secrets() -> None:
    kept, withheld = environment.clean(MINE, "user")
    assert set(kept) == {"PATH", "HOME", "EDITOR", "CUDA_HOME"}
    assert withheld == ("DB_URL", "GITHUB_TOKEN", "MY_API_KEY", "SOME")


def test_clean_is_an_allow_list() -> None:
    kept, withheld = environment.clean(MINE, "clean", allow=("EDITOR",))
    assert set(kept) == {"PATH", "EDITOR", "CUDA_HOME"}
    assert {"GITHUB_TOKEN", "HOME"} <= set(withheld)
    assert "EDITOR" not in environment.clean(MINE, "clean")[0]


def test_places_are_filled_in_and_others_refused() -> None:
    assert fill({"A": "{build_dir}/x"}, "abprof.toml", build_dir="/b") == {"A": "/b/x"}
    with pytest.raises(AbprofError) as error:
        fill({"A": "{home}"}, "abprof.toml", build_dir="/b")
    assert error.value.line == (
        "abprof.toml: A = '{home}': the only placeholders are {build_dir} (write {{ and }} for literal braces)"
    )
    assert fill({"A": "${{HOME}}"}, "abprof.toml", build_dir="/b") == {"A": "${HOME}"}
