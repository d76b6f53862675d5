"""The notice and its comment: made of a run, read as a stranger's, rendered within its bytes and without markup."""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from abprof.cli import run_command_line
from abprof.extras.bot import encode, make_notice, read_notice, render
from abprof.extras.bot.comment import MOST_BYTES as LONGEST
from abprof.extras.bot.notice import MOST_BYTES, Notice
from abprof.records.errors import AbprofError

from . import notices, runs, schemas

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
OURS = {"<details>", "<summary>", "</summary>", "</details>", "<sub>", "</sub>"}


def harmless(text: str) -> None:
    """A Markdown renderer makes no element but ours of it, no link, no picture, no mention outside code."""
    assert "`" * 81 not in text, "GitHub opens no code with so many; the renderer below does"
    for token in RENDERER.parse(text):
        if token.type == "html_block":
            assert set(re.findall(r"<[^>]*>", token.content)) <= OURS, token.content
            assert not re.search(r"[@#]\w", token.content), token.content
        for part in token.children or ():
            assert part.type not in ("link_open", "image"), part
            if part.type == "html_inline":
                assert part.content in OURS, part.content
            if part.type == "text":
                assert not re.search(r"[@#](?=\w)|://|www\.|(mailto|xmpp):|GH-\d", part.content, re.I), part.content


@pytest.mark.parametrize(
    ("kind", "answer", "says"),
    [
        ("act", "act", "Act: 7 broken, 1 slower"), ("slower", "act", "Act: 1 slower"),
        ("faster", "fine", "Nothing to act on: 1 faster"), ("unchanged", "fine", "Nothing to act on"),
        ("untrusted", "unjudged", "Do not act on this run"), ("undecided", "unjudged", "No answer yet"),
        ("nothing_measured", "unjudged", "Nothing was measured"), ("running", "running", "Measuring, no answer yet"),
    ],
)  # fmt: skip
def test_every_kind_of_run_has_its_answer(kind, answer, says):
    made = notices.made(kind)
    assert made.answer == answer
    assert says in render(made).splitlines()[0]
    assert (render(made).count("\n") == 1) == (kind == "unchanged"), "nothing changed is one line"


def test_an_output_that_the_target_repairs_is_fixed():
    one = make_notice(notices.unclear("base_wrong"))
    assert (one.answer, one.unchanged) == ("fine", False)
    assert re.match(r"## abprof: Fixed: \d+ fixed \(", render(one))
    assert "| ✔ fixed |" in render(one)


def test_a_weaker_guarantee_is_never_folded_or_left_out():
    text = render(notices.made("command"))
    assert "** **Weaker guarantee:** the command timed itself." in text
    one = make_notice(notices.without_reference("dense"))
    assert render(one).splitlines()[0].endswith(" Weaker guarantee.")
    assert "**Weaker guarantee:** `dense` has no reference" in render(one, most=3_000).split("<details>")[0]
    many = make_notice(notices.without_reference(*(f"w{n}" for n in range(30))))
    assert "`w4` and 25 others has no reference" in render(many)


def test_five_rows_stand_unfolded_each_with_its_cause():
    text = render(notices.made("act"))
    shown = text.split("<details>")[0].split("| why |")[1]
    assert len(re.findall(r"^\| . \w+ \|", shown, re.M)) == 5
    assert "| wrong output: `output 0: largest error 0.41, allowed 0.02` |" in shown
    assert "<details><summary>7 more</summary>" in text
    plain = notices.made("slower")
    row = next(row for row in plain.rows if row.verdict == "slower")
    for causes, cell in (
        (("spills: 0 to 24 `local loads` | a bar", "x"), "| ``spills: 0 to 24 `local loads` \\| a bar``; `x` |"),
        ((), "| no cause found |"),
    ):
        assert cell in render(runs.changed(plain, rows=(runs.changed(row, causes=causes),)))


@pytest.mark.parametrize("check", ["inside", "outside"])
def test_a_time_of_hostile_code_that_nothing_confirmed_is_no_speed(check: str) -> None:
    run = notices.only("unclear")
    rows = tuple(runs.changed(row, pct=-74.0, reasons=("epochs",)) for row in run.comparisons)
    options = runs.changed(run.options, check=check)
    notice = make_notice(runs.changed(run, options=options, comparisons=rows))
    assert notice.rows
    assert all((row.pct is None and row.target_ns is None) == (check == "outside") for row in notice.rows)
    assert ("74.0 % faster" in render(notice)) == (check == "inside")


def test_a_run_without_a_verdict_has_nothing_to_post():
    run = runs.run()
    with pytest.raises(AbprofError, match="a run without timings has no verdict"):
        make_notice(msgspec.structs.replace(run, options=msgspec.structs.replace(run.options, timed=False)))
    with pytest.raises(AbprofError, match="one branch has no verdict"):
        make_notice(runs.single())


def test_it_shrinks_in_steps_and_says_what_it_left_out():
    plain, wide = notices.made("slower"), "é🔥" * 100
    row = runs.changed(plain.rows[0], case=wide, causes=(wide,) * 8)
    sizes = set()
    for count in (1, 60, 200):
        text = render(runs.changed(plain, rows=(row,) * count, rows_left_out=7))
        assert len(text.encode()) <= LONGEST
        assert text.splitlines()[0] == render(plain).splitlines()[0]
        found = re.search(r"Left out for length: (\d+) rows?", text)
        sizes.add(int(found[1]))
        assert len(re.findall(r"^\| ▲ slower \| `", text, re.M)) + int(found[1]) == count + 7
    assert len(sizes) == 3
    for most in (60_000, 20_000, 6_000, 3_000):
        text = render(notices.made("hostile"), most=most)
        assert len(text.encode()) <= most
        assert ("Left out for length" in text) == (most < 9_000)


def plain(kind: str = "act") -> dict[str, Any]:
    return json.loads(encode(notices.made(kind)))


def put(folder: Path, content: Any) -> Path:
    path = folder / "notice.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refused(path: Path) -> str:
    with pytest.raises(AbprofError) as found:
        read_notice(path)
    assert "\n" not in found.value.line
    assert len(found.value.line) < 600
    return found.value.line


def test_the_artifact_of_a_run_fits_its_schema_and_its_reader(tmp_path, capfdbinary):
    validator = jsonschema.Draft202012Validator(schemas.schemas()["notice.schema.json"])
    for kind in notices.KINDS:
        validator.validate(plain(kind))
        assert read_notice(put(tmp_path, plain(kind))) == notices.made(kind)
    assert not validator.is_valid({**plain(), "pr": 7})
    folder = runs.write(tmp_path, notices.slower())
    assert run_command_line(["report", str(folder), "--format", "artifact"]) == 0
    assert read_notice(put(tmp_path, capfdbinary.readouterr().out)).head == notices.made("slower").head


def test_a_gigabyte_is_not_read(tmp_path):
    with (tmp_path / "notice.json").open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    assert f"larger than {MOST_BYTES} bytes" in refused(tmp_path / "notice.json")
    assert tracemalloc.get_traced_memory()[1] < 8 * MOST_BYTES
    tracemalloc.stop()


WRONG = [
    {"schema": 1}, {"schema": "2"}, {"rows": {}}, {"rows": [1]}, {"counts": {"slower": -1}},
    {"counts": {"slower": 1.5}}, {"counts": {"slower": 10**9}}, {"counts": {"A b": 7}}, {"pr": 7},
    {"counts": {f"a{n}": 1 for n in range(41)}},
    {"repo": "a/b"}, {"run": None}, {"run": ["x"]}, {"run": "x" * 201}, {"targets": []}, {"status": "fine"},
    {"measured": "yes"}, {"margin": None}, {"began": "now"}, {"began": "2026-11-20T02:17:00Z --> @x"},
    {"environment": [["a", "b", "c"]]}, {"environment": [["a", "b"]] * 61},
    {"command": ["x" * 601]}, {"notes": ["x"] * 21},
    *({"targets": [{"label": "t", "commit": commit}]}
      for commit in ("9f2c", "../../etc", "9" * 41, "G" * 40, "-->" + "9" * 37)),
]  # fmt: skip


def test_wrong_types_sizes_and_unknown_keys_are_refused(tmp_path):
    for wrong in WRONG:
        assert "not a notice of this abprof" in refused(put(tmp_path, {**plain(), **wrong})), wrong
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1e300", b"-101"):
        raw = json.dumps(plain("slower")).replace('"pct": 2.1', '"pct": @').encode()
        assert "not a notice of this abprof" in refused(put(tmp_path, raw.replace(b"@", number, 1))), number


ATTACKS = (
    "@torvalds", "#1", "https://evil.example", "www.evil.example", "<script>alert(1)</script>", "<!-- x -->", "-->",
    "<!-- abprof:v1 -->", "</details>", "`", "``", "```", "````\n# big", "|", "\\|", "\\", "[a](b)", "![a](b)", "\n\n# h",
    "a\r\nb", "\x1b[31m", "\u202e", "\u200b", "&lt;", "&#64;torvalds", "\x00", "🔥", "$x$", "~~~", "GH-1", "org/repo#1", "a@b.c",
    "../../../etc/passwd", "$(id)", "${{ github.token }}", "é" * 200, "`" * 200,
    "x " + "`" * 81 + " [a](https://b.c) ![a](https://b.c) @a " + "`" * 81, "mailto:a@b.c", "a\\|b `x` | c", "[a]: https://b.c",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(ATTACKS), st.text(max_size=20)), max_size=8).map("".join)
KEPT = {"schema", "status", "lacking", "verdict", "commit", "began", "reasons", "counts"}


def everywhere(value: Any, text: str) -> Any:
    """The same with every free text replaced."""
    if isinstance(value, dict):
        return {name: one if name in KEPT else everywhere(one, text) for name, one in value.items()}
    if isinstance(value, list):
        return [everywhere(one, text) for one in value]
    return text if isinstance(value, str) else value


def shown(kind: str, text: str, head: str = "") -> str:
    content = plain(kind) | {"lacking": "sides", "lacking_in": ["dense", "other"]}
    made = msgspec.json.decode(msgspec.json.encode(everywhere(content, text[:200])), type=Notice)
    return render(made, head=head)


@pytest.mark.parametrize("text", [*ATTACKS, " ".join(ATTACKS)[:200]])
def test_any_text_in_every_place_becomes_data(text):
    harmless(shown("act", text))


@pytest.mark.parametrize("examples", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_any_notice_fits_and_holds_no_markup_and_no_mention(examples):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(sorted(notices.KINDS)), TEXTS, st.sampled_from(["", "5" * 40]))
    def holds(kind, text, head):
        found = shown(kind, text.encode(errors="replace").decode(), head)
        assert len(found.encode()) <= LONGEST
        harmless(found)

    holds()
