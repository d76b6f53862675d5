"""What a person sees while a run goes on: others' text steers no terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from abprof.system.console import View

LINE = "\x1b[01m\x1b[Kffa.cu:3:\x1b[0;31m error:\x1b[m no \x1b]0;mine\x07\x1b[2J\x1b[1;1H\r\tgone\u202e"
SHOWN = "[base ffa] ffa.cu:3: error: no \ufffd]0;mine\ufffd\ufffd[2J\ufffd[1;1H  gone\ufffd"


@pytest.mark.parametrize("terminal", [False, True])
def test_build_output_steers_neither_terminal_nor_log(tmp_path: Path, terminal: bool) -> None:
    out = io.StringIO()
    view = View(verbose=True, stream=out)
    view.console = Console(file=out, force_terminal=terminal, no_color=True, highlight=False, soft_wrap=True)
    view.attach(tmp_path / "output.txt")
    with view.building():
        view.build_line("base ffa", LINE)
    view.detach()
    assert SHOWN in out.getvalue()
    assert (tmp_path / "output.txt").read_text() == f"{SHOWN}\n"


def test_what_is_built_while_others_are_measured_stands_beside_it_in_one_line(tmp_path: Path) -> None:
    """On a terminal; the log has all of it."""
    out = io.StringIO()
    view = View(stream=out)
    view.console = Console(file=out, force_terminal=True, no_color=True, width=200)
    view.attach(tmp_path / "output.txt")
    with view.measuring():
        view.progress("epoch 2: 3 of 4 cells undecided")
        view.build_line("base ffa", LINE)
    view.detach()
    assert f"epoch 2: 3 of 4 cells undecided  {SHOWN}" in out.getvalue()
    assert "\x1b]0;mine" not in out.getvalue()
    assert (tmp_path / "output.txt").read_text() == f"{SHOWN}\n"


def test_the_live_view_of_builds_shows_the_same() -> None:
    out = io.StringIO()
    view = View(stream=out)
    view.console = Console(file=out, force_terminal=True, no_color=True, width=200)
    with view.building():
        view.build_line("base ffa", LINE)
    assert SHOWN in out.getvalue()
    assert "\x1b]0;mine" not in out.getvalue()
