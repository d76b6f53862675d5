"""Loose values die at the door: abprof.toml and the command line's texts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from abprof.records import Package
from abprof.records.errors import AbprofError
from abprof.records.options import Options, worker_argv
from abprof.records.quantities import percent, seconds
from abprof.system import toml
from abprof.system.config_file import parse_file, read_file

GOOD = """
schema = 1
workloads = "perf"

[kernels.rms]
path = "src/mykernels"
import = "mykernels"
inputs = ["src/**"]
build = ["python", "setup.py", "build_ext"]
env = {MYPKG_CACHE = "{build_dir}/cache"}

[defaults]
threshold = 2.0

[[threshold]]
cells = "dense/*"
percent = 1.0
"""


def test_a_whole_file() -> None:
    file = parse_file(GOOD, "abprof.toml")
    assert file.package("rms") == Package(
        name="rms",
        path="src/mykernels",
        module="mykernels",
        inputs=("src/**",),
        build=("python", "setup.py", "build_ext"),
        env={"MYPKG_CACHE": "{build_dir}/cache"},
    )
    assert file.package("other") == Package(name="other")
    settings = Options(specs=("a",), file=file).resolved("cuda", "gpu")
    assert (settings.threshold, settings.margin, settings.thresholds) == (2.0, 0.5, (("dense/*", 1.0),))


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("schema = 1\nkernel = 3\n", "abprof.toml:2", "there is no key 'kernel'"),
        ("schema = 1\n\n[kernels.a]\npaht = 'x'\n", "abprof.toml:4", "there is no key 'paht'"),
        ("schema = 1\n[defaults]\nthreshold = 'much'\n", "abprof.toml:3", "expected a number, got a string"),
        ("schema = 2\n", "abprof.toml:1", "schema = 2, this abprof reads schema = 1"),
        ("schema = 1\nworkloads = \n", "abprof.toml:2", "Invalid value"),
        ("[defaults]\nthreshold = -1\n", "abprof.toml:2", "'-1.0' is not a positive percentage"),
        ("[defaults]\nthreshold = nan\n", "abprof.toml:2", "'nan' is not a positive percentage"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[defaults]\nbudget = '1m'\nmargin = inf\n", "abprof.toml:6",
         "'inf' is not a positive percentage"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[defaults]\n\nthreshold = 0\n", "abprof.toml:6",
         "'0.0' is not a positive percentage"),
        ("[defaults]\nthreshold = 2\nmargin = 3\n", "abprof.toml:3", "a margin of 3 % is wider than the threshold of 2 %"),
        ("[defaults]\nbudget = 'abc'\n", "abprof.toml:2", "'abc' is not a duration"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[[threshold]]\ncells = 'y'\npercent = 0\n", "abprof.toml:6",
         "threshold of 0.0 per cent for 'y'"),
        ("[python]\nall = 'python'\nfoo = 'python'\n", "abprof.toml:3", "no side 'foo'"),
        ("schema = 1\n[[threshold]]\ncells = 'x'\npercent = -1.0\n", "abprof.toml:4", "threshold of -1.0 per cent"),
        ("[kernels.a]\n[environment]\nset = {'A=B' = 'x'}\n", "abprof.toml:3", "no variable can be called 'A=B'"),
        ("[kernels.b]\nenv = {}\n[kernels.a]\nenv = {'' = 'x'}\n", "abprof.toml:4", "no variable can be called ''"),
        ("[command]\nenv = {'=' = 'x'}\n", "abprof.toml:2", "no variable can be called '='"),
        ("[kernels.a]\nenv = {A = \"x\\u0000\"}\n", "abprof.toml:2", "a text with a NUL character"),
        ("schema = 1\nworkloads = \"x\\u0000\"\n", "abprof.toml:2", "a text with a NUL character"),
        ("[command]\nbuild = ['sh', \"\\u0000\"]\n", "abprof.toml:2", "a text with a NUL character"),
        ("[kernels.a]\npath = 'x'\n[kernels.b]\npath = 3\n[[threshold]]\npercent = 1\n", "abprof.toml:4",
         "expected a string, got an integer"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[[threshold]]\npercent = 1\n", "abprof.toml:4",
         "cells is missing"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[[threshold]]\ncells = 'x'\npercent = '1'\n", "abprof.toml:6",
         "expected a number, got a string"),
        ("defaults.budgets = '1m'\n", "abprof.toml:1", "there is no key 'budgets'"),
        ("name = 'x'\n", "abprof.toml:1", "there is no key 'name'"),
        ("[kernels.b]\npath = 'x'\n[kernels.a]\npath = '../x'\n", "abprof.toml:4", "'../x' is not below the repository's root"),
        ("[kernels.a]\npath = 'a/../../x'\n", "abprof.toml:2", "'a/../../x' is not below the repository's root"),
        ("[kernels.a]\npath = '/x/y'\n", "abprof.toml:2", "'/x/y' is not below the repository's root"),
        ("[kernels.a]\npath = '~/x'\n", "abprof.toml:2", "'~/x' is not below the repository's root"),
        ("[kernels.a]\ninputs = ['src/**', '../x/*.h']\n", "abprof.toml:2", "'../x/*.h' is not below the repository's root"),
        ("[kernels.a]\nenv = {A = '{worktree}/{side}'}\n[kernels.b]\nenv = {A = '{root}'}\n", "abprof.toml:4",
         "A = '{root}': only {worktree}, {build_dir}, {side} are filled in"),
        ("[kernels.a]\nbuild = ['make', '{0}']\n", "abprof.toml:2", "part 2 = '{0}': only {worktree}, {build_dir}, {side} are"),
        *((f"[command]\nenv = {{A = '{odd}'}}\n", "abprof.toml:2", f"A = '{odd}': only {{worktree}}, {{build_dir}}, {{side}} are")
          for odd in ("{side.x}", "{side[x]}", "{side[0]}", "}", "${HOME}", "{}", '{"a": 1}')),
        ("[kernels.a]\nbuild = ['sh', '-c', 'echo {side.x}']\n", "abprof.toml:2", "part 3 = 'echo {side.x}': only {worktree}"),
        ("[command]\nenv = {A = '{'}\n", "abprof.toml:2", "A = '{': only {worktree}, {build_dir}, {side} are filled in"),
        ("[kernels.a]\nimport = 'my-lib.x'\n", "abprof.toml:2", "'my-lib.x' is no name that Python imports"),
        ("[executor.slrm]\npartition = 'x'\n", "abprof.toml:1", "no executor 'slrm' has options"),
        ("[kernels.a]\nenv = {A = 'x', B = 1}\n", "abprof.toml:2", "expected a string, got an integer"),
        ("[threshold]\ncells = 'x'\n", "abprof.toml:1", "expected an array, got a table"),
        ("schema = 1\n[defaults]\npreset", "abprof.toml:3", "Expected '=' after a key"),
        ("[defaults]\ntimer = 'gpu'\n", "abprof.toml:2", "'gpu' cannot be meant"),
        ("schema = 1\n[lines]\n", "abprof.toml:2", "there is no key 'lines'"),
        ("schema = 1\n[kernel.k]\npath = 'x'\n", "abprof.toml:2", "there is no key 'kernel'"),
        ("[[thresholds]]\ncells = 'x'\n", "abprof.toml:1", "there is no key 'thresholds'"),
        ("[kernels.a]\n\n[kernels.a.envs.x]\n", "abprof.toml:3", "there is no key 'envs'"),
        ("\n[[defaults]]\npreset = 'x'\n", "abprof.toml:2", "expected a table, got an array"),
        ("[[threshold]]\ncells = 'a'\npercent = 1\n[threshold.x]\ny = 1\n", "abprof.toml:4", "there is no key 'x'"),
        ("[defaults]\npreset = [\n\n", "abprof.toml:3", "Invalid value"),
    ],
)  # fmt: skip
def test_a_broken_file_names_key_and_line(text: str, where: str, says: str) -> None:
    with pytest.raises(AbprofError) as error:
        parse_file(text, "abprof.toml")
    place, _, key = error.value.where.partition(", ")
    assert place == where
    assert (
        "Invalid value" in says
        or "Expected" in says
        or next(part for part in reversed(key.split(".")) if not part.isdecimal()) in text
    )
    assert says in error.value.what
    assert "\n" not in error.value.line


@pytest.mark.parametrize("table", ["", "tool.abprof."])
def test_every_key_knows_its_line_however_it_is_written(table: str) -> None:
    """Dotted keys, inline tables, values of several lines, heads with blanks, elements of arrays of tables."""
    text = f"""# first
{f"[{table[:-1]}]" if table else ""}
defaults.preset = "smoke"
command = {{ build = ["a",
  "]", 'b' ], env = {{ A = "1" }} }}
[ {table}kernels . "a b" ]
inputs = [  # which
  "x = 1",
  "[y]",
]
path = '''
x'''
[[{table}threshold]]
cells = "preset = 'x'"
percent = 1
[[{table}threshold]]
percent = 1
cells = "y"
"""
    for newline in ("\n", "\r\n"):
        whole = tuple(filter(None, table.split(".")))
        file = parse_file(text.replace("\n", newline), "f", whole)
        keys = {
            "defaults.preset": 3,
            "command.build": 4,
            "command.env.A": 4,
            "kernels.a b": 6,
            "kernels.a b.inputs": 7,
            "kernels.a b.path": 11,
            "threshold.0.cells": 14,
            "threshold.0.percent": 15,
            "threshold.1": 16,
            "threshold.1.percent": 17,
            "threshold.1.cells": 18,
        }
        assert {key: file.at(key) for key in keys} == {key: f"f:{line}, {key}" for key, line in keys.items()}
        assert file.at("defaults.timer") == "f, defaults.timer"


@pytest.mark.parametrize("name", ["abprof.toml", "pyproject.toml"])
def test_a_file_that_begins_with_a_byte_order_mark_is_read(name: str, tmp_path: Path) -> None:
    """Editors of Windows write one, and TOML says that it is to be passed over."""
    text = "[tool.abprof]\nworkloads = 'perf'\n" if name == "pyproject.toml" else "\nworkloads = 'perf'\n"
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    file = read_file(tmp_path)
    assert file
    assert file.workloads == "perf"
    assert file.at("workloads") == f"{tmp_path / name}:2, workloads"
    with pytest.raises(AbprofError, match=r"^abprof\.toml:1, paht: there is no key 'paht' \(did you mean path\?"):
        parse_file("\ufeffpaht = 'x'\n", "abprof.toml")


@pytest.mark.parametrize(
    ("data", "line"), [("workloads = 'x'\n".encode("utf-16"), 1), (b"# a\nworkloads = 'caf\xe9'\n", 2)]
)
def test_a_file_in_another_encoding_is_one_line(data: bytes, line: int, tmp_path: Path) -> None:
    (tmp_path / "abprof.toml").write_bytes(data)
    with pytest.raises(AbprofError) as error:
        read_file(tmp_path)
    assert error.value.line == f"{tmp_path}/abprof.toml:{line}: not UTF-8 (save it as UTF-8, as TOML is)"


def test_the_table_in_pyproject(tmp_path: Path) -> None:
    assert read_file(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read_file(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.abprof]\nworkloads = 'perf'\n")
    file = read_file(tmp_path)
    assert file
    assert file.workloads == "perf"
    assert file.at("workloads") == f"{tmp_path}/pyproject.toml:4, workloads"


@pytest.mark.parametrize("what", ["folder", "link to nothing"])
def test_what_stands_in_the_place_of_the_file_is_not_passed_over(what: str, tmp_path: Path) -> None:
    """Also not for pyproject.toml: the user meant something by it."""
    (tmp_path / "pyproject.toml").write_text("[tool.abprof]\nworkloads = 'perf'\n")
    if what == "folder":
        (tmp_path / "abprof.toml").mkdir()
    else:
        (tmp_path / "abprof.toml").symlink_to("nowhere")
    with pytest.raises(AbprofError, match=r"abprof\.toml: is no file"):
        read_file(tmp_path)


def test_a_cpu_has_wider_defaults_and_the_command_line_wins() -> None:
    wide = Options(specs=("a",)).resolved("cpu", "wall")
    assert (wide.threshold, wide.margin) == (5.0, 5.0)
    asked = Options(specs=("a",), threshold=2.0).resolved("cpu", "wall")
    assert (asked.threshold, asked.margin) == (2.0, 2.0)  # a margin is never wider than the threshold


def test_a_margin_wider_than_the_threshold_is_refused_or_told() -> None:
    """Asked for by --margin it is refused; the file's, which the command line wins over, is cut, and that is said."""
    for config in (Options(specs=("a",), threshold=2.0, margin=10.0), Options(specs=("a",), margin=3.0)):
        with pytest.raises(AbprofError, match=r"^--margin: .* is wider than the threshold of (2|1.5) %"):
            config.margin_cut("cuda")
    assert Options(specs=("a",), margin=3.0).margin_cut("cpu") == ""
    assert Options(specs=("a",), threshold=2.0).margin_cut("cpu") == "", "a default follows without a word"
    file = parse_file("[defaults]\nmargin = 3\n", "abprof.toml")
    cut = Options(specs=("a",), file=file).margin_cut("cuda")
    assert cut == "the margin of abprof.toml, 3 %, is cut to the threshold of 1.5 %"


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text, "--budget") == value


@pytest.mark.parametrize("text", ["", "ten", "-5m", "0", "10 days"])
def test_a_duration_that_is_none(text: str) -> None:
    with pytest.raises(AbprofError, match=r"^--timeout: .* is not a duration"):
        seconds(text, "--timeout")


@pytest.mark.parametrize("text", ["-1", "0", "x", "nan", "inf", "1000", ""])
def test_a_percentage_that_is_none(text: str) -> None:
    with pytest.raises(AbprofError, match=r"^--threshold: .* is not a positive percentage"):
        percent(text, "--threshold")
    assert percent("1.5%", "--threshold") == 1.5


def test_a_worker_command_from_the_environment() -> None:
    assert worker_argv({}) == ()
    assert worker_argv({"ABPROF_WORKER": '["python", "w.py"]'}) == ("python", "w.py")
    with pytest.raises(AbprofError, match="ABPROF_WORKER is not a JSON list"):
        worker_argv({"ABPROF_WORKER": "python w.py"})


def test_brackets_and_quotes_within_texts_end_no_value() -> None:
    """The quotes of a text of several lines may be preceded by two of its own."""
    text = """a = '''
x [ # '''''  # [
b = "]"
c = ["]", # ]
  1,
{x = "}", y = '[' }
]
d = \"\"\"
[x] \\\"\"\"
\"\"\"\"
e = 2
[[q]]
[q.s]
y = 1
[[q]]
[q.s]
y = 2
"""
    tomllib.loads(text)
    found = {"a": 1, "b": 3, "c": 4, "d": 8, "e": 11, "q.0": 12, "q.0.s": 13, "q.0.s.y": 14, "q.1": 15, "q.1.s.y": 17}
    lines = toml.lines(text)
    assert {key: lines.get(key) for key in found} == found
    assert lines["c.2.y"] == 4
    assert {key.split(".")[0] for key in lines} == set("abcdeq")


def test_an_interpreter_below_the_home_of_nobody_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "abprof.toml").write_text("[python]\nall = '~nobody-at-all/python'\n")
    file = read_file(tmp_path)
    assert file is not None
    assert file.python == {"all": str(tmp_path / "~nobody-at-all" / "python")}
