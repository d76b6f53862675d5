"""Waivers: a file of a commit, words of a command line, patterns. A waiver covers exactly its rows."""

import datetime
from pathlib import Path

import pytest
from hypothesis import strategies as st

from abprof import sides as repo
from abprof.measure import run_context as place
from abprof.records import WAIVER_FILE, Waiver
from abprof.records.errors import AbprofError
from abprof.system import waiver_file
from abprof.verdict import waivers
from tests import notices, runs
from tests.fuzz.commands import one_clear_line
from tests.fuzz.mutations import hunt, many
from tests.fuzz.test_configuration import WAIVERS
from tests.fuzz.test_odd_texts import ODD
from tests.gitrepo import make_repo

PATTERNS = ("*", "dense/*", "[", "[!", "[]", "[z-a]", "[[]", "]", "?" * 200, "*a" * 200, "[a-" * 50, "dense/seqlen=8192*", "(?s:",
            "\\", "dense/*direction=bwd*", "", "**", "*" * 3000)  # fmt: skip
TEXTS = st.sampled_from((*ODD, *PATTERNS)) | st.text(max_size=30)
PERCENT = st.floats() | st.sampled_from((5.0, 0.1, 1e-7, 999.9999999, 2.1, 1234567.0, 0.0))
DAYS = st.dates().map(datetime.date.isoformat)
NEAR = st.builds(  # those that the row of +2.1 %, measured on 2026-11-20, is covered by or just not
    Waiver,
    cells=st.sampled_from(("*", "dense/*", "dense/*direction=bwd*", "dense/*direction=fwd*")),
    most_pct=st.sampled_from((1.1, 2.0, 2.2, 5.0)),
    reason=TEXTS,
    owner=TEXTS,
    expires=st.sampled_from(("2026-11-19", "2026-11-20", "2026-11-21", "2025-12-31")),
)
ANY = st.builds(Waiver, cells=TEXTS, most_pct=PERCENT, reason=TEXTS, owner=TEXTS, expires=DAYS)


def plain(one: Waiver) -> bool:
    texts = (one.cells, one.reason, one.owner)
    return all(text.strip() and text.isprintable() for text in texts) and one.most_pct in (5.0, 2.1, 0.1)


@many
def test_any_waiver_reads_back_as_it_was_given_or_is_refused(examples: int) -> None:
    before = waiver_file.parse(WAIVERS, "x")

    def ask(one: Waiver) -> None:
        for text in ("", WAIVERS):
            try:
                made = waiver_file.with_one_more(text, one, "x")
            except AbprofError as error:
                one_clear_line(error)
                assert not plain(one), "what can be meant was refused"
            else:
                assert waiver_file.parse(made, "x") == (*(before if text else ()), one)
                assert made.startswith(text.rstrip("\n"))

    for text in ODD:
        ask(Waiver(cells=text, most_pct=5.0, reason=text, owner=text, expires="2026-12-31"))
    hunt(ANY, ask, examples)


@many
def test_only_what_was_accepted_is_waived(examples: int) -> None:
    plain = runs.changed(notices.slower(), warnings=())

    def ask(valid: list[Waiver]) -> None:
        run = runs.changed(plain, waivers=tuple(valid))
        most = max(
            (one.most_pct for one in valid if one.expires >= run.began[:10] and one.most_pct == one.most_pct), default=0
        )
        for before, after in zip(run.comparisons, waivers.applied(run, run.comparisons), strict=True):
            if after != before:
                assert (after.verdict, after.reasons) == ("slower", (*before.reasons, "waived"))
                assert after.pct <= most
        for one in waivers.advice(run, run.comparisons):
            assert one.cells
            assert set(one.cells) <= {cell.id for cell in run.cells}

    hunt(st.lists(NEAR, min_size=1, max_size=2) | st.lists(ANY | NEAR, max_size=4), ask, examples)
    ask([Waiver(cells=pattern, most_pct=5.0, reason="r", owner="o", expires="2999-01-01") for pattern in PATTERNS])


@pytest.mark.parametrize("kind", ["folder", "link", "loop", "outside", "bytes", "deep", "module"])
def test_what_base_has_in_the_place_of_the_file(tmp_path: Path, kind: str) -> None:
    """Read from the commit as git has it: nothing outside of the repository is opened."""
    made = make_repo(tmp_path / "repo")
    file = made.path / WAIVER_FILE
    (tmp_path / "outside").write_text(WAIVERS)
    if kind == "folder":
        made.write({f"{WAIVER_FILE}/a": "x"})
    elif kind in ("link", "loop", "outside"):
        made.write({"other.toml": WAIVERS})
        file.symlink_to({"link": "other.toml", "loop": file.name, "outside": str(tmp_path / "outside")}[kind])
    elif kind == "module":
        (make_repo(file)).commit("inner", {"a": "1"})
    else:
        file.write_bytes(WAIVERS.encode() + b"\xff\xfe" if kind == "bytes" else b"a = " + b"[" * 100_000)
    made.commit("first")
    found = repo.open_repository(made.path, cache=tmp_path / "cache")
    sides, _ = repo.resolve(found, ["main"])
    try:
        read = place._waivers(found, sides[0])
    except AbprofError as error:
        one_clear_line(error)
        assert kind in ("folder", "bytes", "deep")
    else:
        assert len(read) == (kind == "link")
