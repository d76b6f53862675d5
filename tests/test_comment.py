"""The comment: the answer first, whole, always within its bytes, and harmless whatever a notice holds."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from abprof.extras.bot.comment import MOST_BYTES, TOP, Around, comment, sentence, title
from abprof.extras.bot.from_run import notice
from abprof.extras.bot.notice import Commit, Moment, Notice, Ref, Row, Trouble, Warned, encoded, read
from abprof.records import Night
from abprof.records.errors import AbprofError

from . import notices, runs

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
OURS = {"<details>", "<summary>", "</summary>", "</details>", "<sub>", "</sub>"}


def first_line(text: str) -> str:
    return text.splitlines()[0]


@pytest.mark.parametrize("kind", notices.KINDS)
def test_the_first_line_is_the_answer_and_the_reports_sentence(kind):
    made = notices.made(kind)
    assert sentence(made) in first_line(comment(made))
    assert len(comment(made).encode()) < MOST_BYTES


@pytest.mark.parametrize(
    ("kind", "answer", "says"),
    [
        ("act", "act", "Act: 7 broken, 1 slower"),
        ("slower", "act", "Act: 1 slower"),
        ("faster", "fine", "Nothing to act on: 1 faster"),
        ("unchanged", "fine", "Nothing to act on"),
        ("untrusted", "unjudged", "Do not act on this run"),
        ("undecided", "unjudged", "No answer yet"),
        ("nothing_measured", "unjudged", "Nothing was measured"),
        ("running", "running", "Measuring, no answer yet"),
    ],
)
def test_every_kind_of_run_has_its_answer(kind, answer, says):
    made = notices.made(kind)
    assert made.answer == answer
    assert says in first_line(comment(made))


def test_nothing_changed_is_one_line():
    text = comment(notices.made("unchanged"))
    assert text.count("\n") == 1
    assert "`main` `1a2b3c4d1a` → `feature/optimize ffa` `9f2c4e7a9f`" in text


def test_a_weaker_guarantee_is_said_before_anything_is_folded():
    text = comment(notice(notices.command("slower same")))
    assert first_line(text).endswith(" Weaker guarantee.")
    assert text.splitlines()[2].startswith(
        "**Weaker guarantee:** the command timed itself. Whether its outputs are right"
    )
    assert text.count("the command timed itself") == 1

    text = comment(notice(notices.without_reference("dense", "`x` <b> @you\n# h")))
    line = text.splitlines()[2]
    assert line.startswith("**Weaker guarantee:** `dense`, `` `x` <b> @you # h `` has no reference. ")
    many = comment(notice(notices.without_reference(*(f"w{n}" for n in range(30)))))
    assert "`w4` and 25 others has no reference" in many
    assert "eaker" not in comment(notices.made("slower"))


def test_one_line_of_a_weaker_guarantee_says_so_in_it():
    text = comment(notices.made("command"))
    assert text.count("\n") == 1
    assert "unchanged" not in text
    assert "** **Weaker guarantee:** the command timed itself." in first_line(text)
    assert title(notices.made("command")).endswith(" Weaker guarantee."), "the check run's title says it too"


def test_at_most_five_rows_stand_unfolded_and_each_has_its_cause_in_it():
    text = comment(notices.made("act"))
    shown = text.split("<details>")[0].split("| why |")[1]
    assert len(re.findall(r"^\| . \w+ \|", shown, re.M)) == TOP
    assert "| the output does not match the reference: `output 0: largest error 0.41, allowed 0.02` |" in shown
    assert "<details><summary>7 more</summary>" in text


def test_causes_stand_in_the_row():
    plain = notices.made("slower")
    row = next(row for row in plain.rows if row.verdict == "slower")
    causes = ("spills: 0 to 24 `local loads` | a bar", "the clock")
    text = comment(runs.changed(plain, rows=(runs.changed(row, causes=causes),)))
    assert "| ``spills: 0 to 24 `local loads` \\| a bar``; `the clock` |" in text
    assert "| no cause found |" in comment(runs.changed(plain, rows=(runs.changed(row, causes=()),)))


def test_no_average_over_a_selection():
    text = comment(notices.made("act"))
    assert "mean" not in text.replace("Slower and faster mean beyond", "")
    assert "| = same | 4 | 0.0 to 0.1 % slower |" in text


def test_the_command_names_commits_the_seed_and_keeps_the_options():
    run = runs.changed(
        notices.act(), arguments=("run", "--only", "a=b c", "main", "feature/optimize ffa", "--budget", "5m")
    )
    text = comment(notice(run))
    base, target = (side.commit for side in run.sides)
    assert f"```\n abprof {base} {target} --only 'a=b c' --budget 5m --seed 0\n```" in text


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        ("main fast --preset fast --set k=main", ["--preset", "fast", "--set", "k=main"]),
        ("--quick main --no-peers fast", ["--quick", "--no-peers"]),
        ("main...fast --quick", ["--quick"]),
        ("--preset fast main fast", None),  # which `fast` is the branch cannot be told
        ("rerun runs/x", None),
        (
            "main fast --quick -- python b.py --seed 5 main",
            ["--quick", "--seed", "0", *["--", "python", "b.py", "--seed", "5", "main"]],
        ),
    ],
)
def test_only_refs_are_replaced_in_the_command(words, rest):
    base, target = notices.act().sides[0], notices.act().sides[-1]
    sides = (runs.changed(base, spec="main"), runs.changed(target, spec="fast"))
    made = notice(runs.changed(notices.act(), arguments=tuple(words.split()), sides=sides)).command
    seed = [] if rest and "--seed" in rest else ["--seed", "0"]
    assert made == (() if rest is None else ("abprof", base.commit, target.commit, *rest, *seed))


def test_a_nights_command_compares_its_commits():
    night = Night(series="main", number=2, kind="step", asked="", machine={})
    run = runs.changed(notices.act(), arguments=("nightly", "--branch", "main", "--keep-nights", "3"), night=night)
    base, target = run.sides[0].commit, run.sides[-1].commit
    assert notice(run).command == ("abprof", base, target, "--seed", "0")


def test_no_line_of_a_log_is_a_command_to_another_bot():
    trouble = runs.changed(notices.made("act").troubles[0], lines=("/close", "/approve", "@dependabot merge"))
    lines = comment(runs.changed(notices.made("act"), troubles=(trouble,))).splitlines()
    assert [line for line in lines if "/close" in line or "/approve" in line] == [" /close", " /approve"]


def test_a_demos_command_is_the_demo():
    """Its refs are of a repository that nobody else has."""
    assert notice(runs.changed(notices.act(), arguments=("demo", "there"))).command == ("abprof", "demo", "there")


def test_a_run_without_times_has_nothing_to_post():
    made = runs.run()
    counted = msgspec.structs.replace(made, options=msgspec.structs.replace(made.options, timed=False))
    with pytest.raises(AbprofError, match="nothing was timed in this run"):
        notice(counted)


def test_a_run_of_one_branch_has_nothing_to_post():
    with pytest.raises(AbprofError, match="one branch has no verdict"):
        notice(runs.single())


# ---------------------------------------------------------------- a failed build


def test_a_failed_builds_log_is_shown_from_its_first_error_and_cleaned(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "target-ffa.log").write_text("\n".join(["noise"] * 20) + "\n" + notices.FAILED_LOG)
    text = comment(notices.made("act", tmp_path))
    told = text[text.index("What did not run") :]
    block = re.search(r"^(````+)\n(.*?)^\1$", told, re.M | re.S)
    assert block, told
    assert block[1] == "````"  # longer than the log's own fence
    assert block[2].splitlines() == [
        " noise",
        " [1/2] c++ -c ffa.cpp",
        " note: fine so far",
        " error: no member named 'tile' in 'Params'",
        " ```",
        " @torvalds",
    ]
    assert "mend the build" in text


def test_a_log_outside_the_run_is_never_read(tmp_path):
    (tmp_path / "secret").write_text("hunter2\n")
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "link.log").symlink_to(tmp_path / "secret")
    for log in ("../../secret", str(tmp_path / "secret"), "link.log", "logs/../../secret"):
        run = notices.act()
        seen = tuple(runs.changed(o, log=log) if o.status == "build_failed" else o for o in run.observations)
        made = notice(runs.changed(run, observations=seen, builds=()), tmp_path / "run")
        assert "hunter2" not in encoded(made).decode()


# ---------------------------------------------------------------- outdated, links


def test_a_head_that_moved_is_said():
    made = notices.made("slower")
    assert "Outdated" not in comment(made, Around(head=made.head))
    assert "> **Outdated:** the branch has moved on to `5555555555`" in comment(made, Around(head="5" * 40))
    assert "Outdated" in comment(notices.made("unchanged"), Around(head="5" * 40))


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "https://a.b/c) [x](d", "https://a b", "ftp://x", "https://x/`"]
)
def test_only_a_plain_address_becomes_a_link(link):
    with pytest.raises(AbprofError, match="not a plain http address"):
        Around(link=link)
    assert "[full report](https://x.example/1)" in comment(notices.made("act"), Around(link="https://x.example/1"))


# ---------------------------------------------------------------- within its bytes


def test_it_shrinks_in_steps_and_says_what_it_left_out():
    plain = notices.made("slower")
    wide = "é🔥" * 100
    row = runs.changed(plain.rows[0], case=wide, causes=(wide,) * 8)
    sizes = set()
    for count in (1, 60, 200):
        text = comment(runs.changed(plain, rows=(row,) * count, rows_left_out=7))
        assert len(text.encode()) <= MOST_BYTES
        assert first_line(text) == first_line(comment(plain))
        found = re.search(r"Left out for length: (\d+) rows?", text)
        assert found
        sizes.add(int(found[1]))
        shown = len(re.findall(r"^\| ▲ slower \| `", text, re.M))
        assert shown + int(found[1]) == count + 7
    assert len(sizes) == 3


@pytest.mark.parametrize("most", [60_000, 20_000, 6_000, 3_000])
def test_every_step_fits(most):
    made = notices.made("hostile")
    text = comment(made, most=most)
    assert len(text.encode()) <= most
    assert first_line(text) == first_line(comment(made))
    assert ("Left out for length" in text) == (most < 9_000)


# ---------------------------------------------------------------- any strings, any number of rows

ATTACKS = (
    "@torvalds", "#1", "https://evil.example", "www.evil.example", "<script>alert(1)</script>", "<!-- x -->", "-->",
    "<!-- abprof:v1 -->", "</details>", "`", "``", "```", "````\n# big", "|", "\\|", "\\", "[a](b)", "![a](b)", "\n\n# h",
    "a\r\nb", "\x1b[31m", "\u202e", "\u200b", "&lt;", "&#64;torvalds", "\x00", "🔥", "$x$", "~~~", "GH-1", "org/repo#1", "a@b.c",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(ATTACKS), st.text(max_size=20)), max_size=6).map(" ".join) | st.lists(
    st.sampled_from(ATTACKS), max_size=8
).map("".join)
FORMS = {Commit: st.sampled_from(["9f" * 20, "1a" * 20]), Moment: st.just("2026-11-20T02:17:00Z")}
CODES = st.sampled_from(["", "budget", "one_clock", "base_wrong", "wrong", "crash", "nobody_knows"])


def records(kind: type, **fields: st.SearchStrategy) -> st.SearchStrategy:
    """Records of this kind whose texts are `TEXTS`, cut to what the record allows."""
    hints = msgspec.inspect.type_info(kind).fields
    for field in hints:
        if field.name not in fields and isinstance(field.type, msgspec.inspect.StrType):
            most = field.type.max_length or 40
            fields[field.name] = TEXTS.map(lambda text, most=most: text[:most])
    return st.builds(kind, **fields)


PERCENT = st.floats(-100, 1e9, allow_nan=False)
REFS = records(Ref, commit=FORMS[Commit])
ROWS = records(
    Row,
    verdict=st.sampled_from(["slower", "faster", "slight", "unclear", "broken"]),
    status=CODES,
    reasons=st.lists(CODES, max_size=3).map(tuple),
    pct=PERCENT,
    low_pct=PERCENT,
    high_pct=PERCENT,
    base_ns=st.floats(0, 1e18),
    causes=st.none() | st.lists(TEXTS.map(lambda text: text[:600]), max_size=8).map(tuple),
)
LINES = TEXTS.map(lambda text: text[:200])
TROUBLES = records(Trouble, status=CODES, on_base=st.booleans(), lines=st.lists(LINES, max_size=30).map(tuple))


@st.composite
def any_notice(draw) -> Notice:
    many = draw(st.sampled_from([1, 1, 5, 40]))
    rows = tuple(draw(st.lists(ROWS, max_size=5)) * many)
    return runs.changed(
        notices.made(draw(st.sampled_from([kind for kind in notices.KINDS if kind != "hostile"]))),
        base=draw(REFS),
        targets=tuple(draw(st.lists(REFS, min_size=1, max_size=3))),
        run=draw(LINES),
        abprof=draw(LINES),
        device=draw(LINES),
        rows=rows,
        troubles=tuple(draw(st.lists(TROUBLES, max_size=2)) * min(many, 10)),
        warnings=tuple(draw(st.lists(records(Warned), max_size=2))),
        notes=tuple(draw(st.lists(TEXTS.map(lambda text: text[:600]), max_size=3))),
        environment=tuple(draw(st.lists(st.tuples(LINES, LINES), max_size=3))) * min(many, 20),
        command=tuple(draw(st.lists(LINES, max_size=4))),
    )


@pytest.mark.parametrize("examples", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_any_notice_fits_and_holds_no_markup_and_no_mention(examples):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(any_notice(), st.sampled_from(["", "5" * 40]))
    def holds(made, head):
        text = comment(made, Around(head=head))
        assert len(text.encode()) <= MOST_BYTES
        harmless(text)

    holds()


def harmless(text: str) -> None:
    """What a Markdown renderer makes of it: no element but ours, no link, no picture, no mention outside code."""
    for token in RENDERER.parse(text):
        if token.type == "html_block":
            assert set(re.findall(r"<[^>]*>", token.content)) <= OURS, token.content
            assert not re.search(r"[@#]\w", token.content), token.content
        for part in token.children or ():
            assert part.type not in ("link_open", "image"), part
            if part.type == "html_inline":
                assert part.content in OURS, part.content
            if part.type == "text":
                assert not re.search(r"[@#](?=\w)|://|www\.", part.content), part.content


def test_the_check_of_harmlessness_can_fail():
    for bad in ("hello @torvalds", "fixes #1", "<b>x</b>", "[a](b)", "https://x.example", "![a](b)", "<!-- x -->"):
        with pytest.raises(AssertionError):
            harmless(bad)


# ---------------------------------------------------------------- the file in between


@pytest.mark.parametrize("kind", notices.KINDS)
def test_a_notice_is_read_back_as_it_was(kind, tmp_path):
    made = notices.made(kind)
    (tmp_path / "notice.json").write_bytes(encoded(made))
    assert read(tmp_path / "notice.json") == made
    assert comment(read(tmp_path / "notice.json")) == comment(made)
