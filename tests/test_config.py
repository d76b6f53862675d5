"""Loose values die at the door: abprof.toml and the command line's texts."""

from pathlib import Path

import pytest

from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system import toml
from abprof.system.config_file import parse_file, read_file


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("schema = 1\nkernel = 3\n", "kernel", "there is no key 'kernel'"),
        ("schema = 1\n\n[kernels.a]\npaht = 'x'\n", "kernels.a.paht", "there is no key 'paht'"),
        ("schema = 1\n[defaults]\nthreshold = 'much'\n", "defaults.threshold", "got `str`"),
        ("schema = 2\n", "schema", "schema = 2, this abprof reads schema = 1"),
        ("schema = 1\nworkloads = \n", "abprof.toml:2", "Invalid value"),
        ("[defaults]\nthreshold = -1\n", "defaults.threshold", "'-1.0' is not a positive percentage"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[defaults]\nbudget = '1m'\nmargin = inf\n", "defaults.margin",
         "'inf' is not a positive percentage"),
        ("[defaults]\nthreshold = 2\nmargin = 3\n", "defaults.margin", "3.0 % is wider than the threshold of 2.0 %"),
        ("[defaults]\nbudget = 'abc'\n", "defaults.budget", "'abc' is not a duration"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[[threshold]]\ncells = 'y'\npercent = 0\n", "threshold.1.percent",
         "'0.0' is not a positive percentage"),
        ("[python]\nall = 'python'\nfoo = 'python'\n", "python.foo", "unknown side 'foo'"),
        ("[kernels.a]\n[environment]\nset = {'A=B' = 'x'}\n", "environment.set", "'A=B' is not a valid name of"),
        ("[kernels.a]\nenv = {A = \"x\\u0000\"}\n", "kernels.a.env.A", "the text contains a NUL character"),
        ("[kernels.a]\npath = 'x'\n[kernels.b]\npath = 3\n[[threshold]]\npercent = 1\n", "kernels.b.path",
         "Expected `str`, got `int`"),
        ("[[threshold]]\ncells = 'x'\npercent = 1\n[[threshold]]\npercent = 1\n", "threshold.1",
         "missing required field `cells`"),
        ("defaults.budgets = '1m'\n", "defaults.budgets", "there is no key 'budgets'"),
        ("[kernels.b]\npath = 'x'\n[kernels.a]\npath = '../x'\n", "kernels.a.path", "'../x' is not below the repository's root"),
        ("[kernels.a]\npath = 'a/../../x'\n", "kernels.a.path", "'a/../../x' is not below the repository's root"),
        ("[kernels.a]\ninputs = ['src/**', '../x/*.h']\n", "kernels.a.inputs", "'../x/*.h' is not below the repository's root"),
        ("[kernels.a]\nenv = {A = '{worktree}/{side}'}\n[kernels.b]\nenv = {A = '{root}'}\n", "kernels.b.env",
         "A = '{root}': the only placeholders are {worktree}, {build_dir}, {side} (write {{ and }} for literal braces)"),
        ("[kernels.a]\nbuild = ['make', '{0}']\n", "kernels.a.build", "part 2 = '{0}': the only placeholders are "),
        *((f"[command]\nenv = {{A = '{odd}'}}\n", "command.env", f"A = '{odd}': the only placeholders are ")
          for odd in ("{side.x}", "{side[0]}", "}", "${HOME}", "{}")),
        ("[command]\nenv = {A = '{'}\n", "command.env", "A = '{': the only placeholders are {worktree}, {build_dir}, {side}"),
        ("[kernels.a]\nimport = 'my-lib.x'\n", "kernels.a.import", "'my-lib.x' is not a name that Python can import"),
        ("[executor.slrm]\npartition = 'x'\n", "executor.slrm", "unknown executor 'slrm', expected slurm or ray"),
        ("[kernels.a]\nenv = {A = 'x', B = 1}\n", "kernels.a.env.B", "Expected `str`, got `int`"),
        ("[threshold]\ncells = 'x'\n", "threshold", "Expected `array`, got `object`"),
        ("schema = 1\n[defaults]\npreset", "abprof.toml:3", "Expected '=' after a key"),
        ("[defaults]\ntimer = 'gpu'\n", "defaults.timer", "Invalid enum value 'gpu'"),
        ("[[thresholds]]\ncells = 'x'\n", "thresholds", "there is no key 'thresholds'"),
        ("[kernels.a]\n\n[kernels.a.envs.x]\n", "kernels.a.envs", "there is no key 'envs'"),
        ("\n[[defaults]]\npreset = 'x'\n", "defaults", "Expected `object`, got `array`"),
        ("[[threshold]]\ncells = 'a'\npercent = 1\n[threshold.x]\ny = 1\n", "threshold.0.x", "there is no key 'x'"),
        ("[defaults]\npreset = [\n\n", "abprof.toml:3", "Invalid value"),
    ],
)  # fmt: skip
def test_a_broken_file_names_the_key(text: str, where: str, says: str) -> None:
    with pytest.raises(AbprofError) as error:
        parse_file(text, "abprof.toml")
    assert error.value.where == (where if ":" in where else f"abprof.toml, {where}")
    assert says in error.value.line
    assert "\n" not in error.value.line


@pytest.mark.parametrize("name", ["abprof.toml", "pyproject.toml"])
def test_a_file_that_begins_with_a_byte_order_mark_is_read(name: str, tmp_path: Path) -> None:
    """Editors of Windows write one, and TOML says that it is to be passed over."""
    text = "[tool.abprof]\nworkloads = 'perf'\n" if name == "pyproject.toml" else "\nworkloads = 'perf'\n"
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    file = read_file(tmp_path)
    assert file.workloads == "perf"
    assert file.at("workloads") == f"{tmp_path / name}, workloads"
    with pytest.raises(AbprofError, match=r"no key 'submodules' here \(it belongs to kernels; docs"):
        parse_file("submodules = true\n", "abprof.toml")
    with pytest.raises(AbprofError, match=r"^abprof\.toml, paht: there is no key 'paht' \(did you mean path\?"):
        parse_file(toml.decoded("\ufeffpaht = 'x'\n".encode(), "abprof.toml"), "abprof.toml")


@pytest.mark.parametrize("what", ["folder", "link to nothing"])
def test_what_stands_in_the_place_of_the_file_is_not_passed_over(what: str, tmp_path: Path) -> None:
    """Also not for pyproject.toml: the user meant something by it."""
    (tmp_path / "pyproject.toml").write_text("[tool.abprof]\nworkloads = 'perf'\n")
    if what == "folder":
        (tmp_path / "abprof.toml").mkdir()
    else:
        (tmp_path / "abprof.toml").symlink_to("nowhere")
    with pytest.raises(AbprofError, match=r"abprof\.toml: not a file"):
        read_file(tmp_path)


def test_a_cpu_has_wider_defaults_and_the_command_line_wins() -> None:
    wide = Options(specs=("a",)).resolved("cpu", "wall")
    assert (wide.threshold, wide.margin) == (5.0, 5.0)
    asked = Options(specs=("a",), threshold=2.0).resolved("cpu", "wall")
    assert (asked.threshold, asked.margin) == (2.0, 2.0)  # a margin is never wider than the threshold


def test_a_margin_wider_than_the_threshold_is_refused_or_cut() -> None:
    """--margin is refused; abprof.toml's is cut to the threshold."""
    for config in (Options(specs=("a",), threshold=2.0, margin=10.0), Options(specs=("a",), margin=3.0)):
        with pytest.raises(AbprofError, match=r"^--margin: .* is wider than the threshold of (2|1.5) %"):
            config.percents("cuda")
    assert Options(specs=("a",), margin=3.0).percents("cpu") == (5.0, 3.0)
    file = parse_file("[defaults]\nmargin = 3\n", "abprof.toml")
    assert Options(specs=("a",), file=file).percents("cuda") == (1.5, 1.5)
