"""The docs are true: commands of README and docs/CLI.md run, links have targets, tables agree with the code."""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer

from abprof.cli import app
from abprof.records import Package, PackageTable
from abprof.records.errors import Exit
from abprof.records.options import CommandEntry, Defaults, Environment, Options, Tables, Threshold
from abprof.report.sentences import VERDICTS
from abprof.system.config_file import parse_file
from tests.ncu.recorded import two_sides
from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import Scenario, Time, Workload

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CLI = (ROOT / "docs" / "CLI.md").read_text()
SKILL = ROOT / "skills" / "abprof" / "SKILL.md"
ASSISTANTS = [ROOT / "llms.txt", SKILL]
PAGES = sorted([*ASSISTANTS, ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
VERBS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def blocks(text: str) -> list[str]:
    """Return the lines of fenced blocks without a language: commands that a user types."""
    return [line for block in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines() if line]


def commands(text: str) -> list[str]:
    """Every `abprof ...` of a page: in blocks, and in inline code."""
    inline = re.findall(r"`(abprof [^`]+)`", text)
    return list(dict.fromkeys([line for line in blocks(text) if line.startswith("abprof ")] + inline))


def test_make_test_names_what_it_leaves_out_and_the_command_that_runs_it() -> None:
    out = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (left_out,) = re.findall(r"-m '(not .*)'", (ROOT / "pyproject.toml").read_text())
    for mark in left_out.removeprefix("not ").split(" and not "):
        assert re.search(rf"left out:.* {mark} \((make test-{mark}|pytest -m {mark})\)", out)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """README's own situation: a repository with branches main and optimize_ffa, and a run in which a cell is slower."""
    axes = {"seqlen": [4096, 8192], "mask_type": ["full"], "direction": ["fwd", "bwd"]}
    load = Workload(
        kernel="ffa", suite="dense", presets={"default": axes}, seed_columns=["seqlen", "mask_type", "direction"]
    )
    slow = Time(factor=1.2, cell="*direction=bwd", side="target")
    made = Lab(tmp_path_factory.mktemp("docs"), Scenario(workloads={"dense": load}, times=[Time(ns=20e6), slow]))
    made.repo.git("branch", "optimize_ffa", "fast")
    assert made.abprof("main", "optimize_ffa", "--only", "seqlen=8192").code == 1
    yield made
    assert made.left_behind() == []


def run_elsewhere(words: list[str]) -> bool:
    """Verbs that tests of their own run: test_demo.py, test_selfcheck.py, test_run_cell.py, ncu/, test_nightly.py, and
    adopt/ (an init that looks at a repository)."""
    looks = words[0] == "init" and "--github" not in words
    return (
        words[0] in {"demo", "selfcheck", "run-cell", "profile", "nightly"} or words[:2] == ["memory", "main"] or looks
    )


def follow(lab: Lab, command: str) -> Result:
    """Run a command as README has it. Comparisons are planned only: that their options exist and their refs resolve."""
    folder = next(path for path in lab.runs.iterdir() if path.is_dir())
    recorded = {file.name: str(file) for file in two_sides(lab.folder)}
    csv = {"BASE": "profile_dense_main", "TARGET": "profile_dense_optimize_ffa", "OUT": "out"}
    planned = {"--json=summary": "--json", "unclear": "slower"} if "report" not in command else {}
    words = [
        "--help"  # tests/reported runs commands, tests/watching watches, tests/test_releases.py compares releases
        if word in {"--", "--watch"} or word.startswith("dist:")
        else str(folder / f"{csv[word[:-4]]}.csv")
        if word[:-4] in csv
        else str(folder)
        if word in ("RUN", "RUN1", "RUN2")
        else recorded.get(word, planned.get(word, word))
        for word in shlex.split(command)[1:]
    ]
    if "--help" in words:
        return lab.command(*words[: words.index("--help") + 1])
    if run_elsewhere(words):
        return lab.command(words[0], "--help")
    if words[0] == "list":
        return lab.command(*words, "--repo", str(lab.repo.path), "--device", "simulated")
    if words[0] == "scripts" and str(folder) not in words:
        return lab.command(*words, "--repo", str(lab.repo.path), "--device", "simulated")
    if words[0] in {"rerun", "scripts"}:
        return lab.command(*words, "--repo", str(lab.repo.path))
    if words[0] == "init":
        plain = lab.folder / "bot"
        if not plain.exists():
            subprocess.run(["git", "clone", "-q", "-b", "main", str(lab.repo.path), str(plain)], check=True)
        return lab.command(*words, "--repo", str(plain))
    if words[0] == "waive":
        done = lab.command(*words, "--repo", str(lab.repo.path))
        (lab.repo.path / "abprof-waivers.toml").unlink()
        return done
    if words[0] == "history":
        return lab.command(*words, "--runs-dir", str(lab.runs))
    if words[0] in VERBS and words[0] not in {"run", "bisect"}:
        return lab.command(*words)
    return lab.abprof(*words, *(() if "--dry-run" in words else ("--dry-run",)))


FOR_ASSISTANTS = [command for page in ASSISTANTS for command in commands(page.read_text())]


@pytest.mark.parametrize("command", dict.fromkeys([*commands(README), *commands(CLI), *FOR_ASSISTANTS]))
def test_commands_of_readme_cli_and_the_assistants_pages_work(lab: Lab, command: str) -> None:
    result = follow(lab, command)
    assert result.code == (1 if " rerun " in command else 0), result
    assert "Traceback" not in result.err
    assert result.out


def test_the_skill_explains_every_key_verdict_and_exit_code(lab: Lab) -> None:
    skill = SKILL.read_text()
    front = re.match(r"---\nname: (\S+)\ndescription: (.{1,1024})\n---\n", skill)
    assert front[1] == SKILL.parent.name
    folder = next(path for path in lab.runs.iterdir() if path.is_dir())
    shown = json.loads(lab.command("report", str(folder), "--json=summary").out)
    keys = {*shown, *(key for row in shown["rows"] for key in row)}
    assert {"rows", "interval"} < keys
    assert [name for name in (*keys, *VERDICTS) if f"`{name}`" not in skill] == []
    codes = re.findall(r"^\| (\d+) \| (.*?)(?: \||;|:)", skill, re.M)
    assert [int(code) for code, _ in codes] == [code.value for code in Exit]


def test_every_verb_is_in_cli() -> None:
    shown = {word for command in commands(CLI) for word in command.split()[1:2]}
    assert {verb for verb in VERBS if verb not in shown} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(lab: Lab, verb: str) -> None:
    result = lab.command(verb, "--help")
    assert result.code == 0
    assert f"Usage: abprof {verb}" in result.out
    assert len(result.out.splitlines()) > 5


def test_exit_codes_are_those_of_the_code() -> None:
    section = re.search(r"Exit codes: (.*?)\n\n", README, re.S)
    numbers = [int(part.split()[0]) for part in re.split(r";\s*", section[1])]
    assert numbers == [code.value for code in Exit]


def links(page: Path) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads}, link


def test_every_page_is_reachable_from_readme() -> None:
    linked = {(ROOT / link).resolve() for link in links(ROOT / "README.md")}
    assert set((ROOT / "docs").glob("*.md")) <= linked


def test_pages_that_the_code_names_exist() -> None:
    """No advice or comment names a page that does not exist."""
    named = {
        (file, page)
        for file in (*(ROOT / "abprof").rglob("*.py"), *(ROOT / "templates").rglob("*.*"))
        for page in re.findall(r"docs/[\w/.-]+\.(?:md|json)\b", file.read_text())
    }
    assert named
    assert not [(file.name, page) for file, page in named if not (ROOT / page).exists()]


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "kernels").rglob("*.md"))], ids=lambda page: page.name)
def test_no_page_holds_a_path_of_one_machine(page: Path) -> None:
    found = re.findall(r"(?<![\w.])/(?:home|root|work|Users|mnt|data|srv)/\S+", page.read_text())
    assert found == []


def test_installing_replaces_nothing() -> None:
    """Only lower bounds: an installed older or newer torch stays."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {re.split(r"[<>=!~ ;]", item)[0]: item.split(";")[0] for item in project["dependencies"]}
    assert {"torch", "triton"} <= set(bounds)
    for item in bounds.values():
        assert re.fullmatch(r"[\w-]+>=[\d.]+", item.strip()), item
    section = re.search(r"requires lower bounds.*?(?=\n\n)", README, re.S)
    versions = re.findall(r"torch (\d+\.\d+)", section[0])
    assert versions
    assert bounds["torch"] == f"torch>={min(versions, key=lambda version: int(version.partition('.')[2]))}", (
        "the oldest that is said to be tested"
    )


CONFIG = (ROOT / "docs" / "CONFIG.md").read_text()
SECTIONS = {
    Tables: "Top level", PackageTable: "`[kernels.NAME]`", Defaults: "`[defaults]`", Environment: "`[environment]`",
    CommandEntry: "`[command]`", Threshold: "`[[threshold]]`",
}  # fmt: skip


@pytest.mark.parametrize("record", SECTIONS, ids=lambda record: record.__name__)
def test_every_key_of_abprof_toml_is_explained(record: type[msgspec.Struct]) -> None:
    """A table of its own has a heading, a plain key stands in its section; and the example uses it."""
    section = CONFIG.split(f"## {SECTIONS[record]}")[1].split("\n## ")[0]
    tables = re.findall(r"^## `\[+(\w+)", CONFIG, re.M)
    keys = [field.encode_name for field in msgspec.structs.fields(record)]
    assert keys
    for key in keys:
        assert f"`{key}`" in section or (record is Tables and key in tables), key
    example = re.search(r"```toml\n(.*?)```", CONFIG, re.S)
    for key in keys:
        assert re.search(rf"^(\[+)?{key}\b", example[1], re.M), f"{key} is not in the example"


def test_the_example_of_abprof_toml_is_read() -> None:
    example = re.search(r"```toml\n(.*?)```", CONFIG, re.S)
    file = parse_file(example[1], "docs/CONFIG.md")
    assert file.package("ffa") == Package(
        name="ffa", path="src/mylib/ffa", module="mylib.ffa", inputs=("csrc/**", "src/**", "setup.py"), submodules=True, network=True,
        build=("python", "setup.py", "build_ext", "--inplace"), env={"MAX_JOBS": "8", "FFA_CACHE": "{build_dir}/cache"},
    )  # fmt: skip
    assert file.package("other") == Package(name="other")
    settings = Options(specs=("a",), file=file).resolved("cuda", "gpu")
    thresholds = (("dense/*direction=bwd*", 3.0), ("dense/*", 1.0))
    assert (settings.threshold, settings.margin, settings.thresholds) == (1.5, 0.5, thresholds)


def test_every_variable_of_abprofs_own_is_named() -> None:
    texts = [file.read_text() for file in (ROOT / "abprof").rglob("*.py")]
    used = {name for text in texts for name in re.findall(r"environ(?:\.get)?[\[(]\"(ABPROF_\w+)\"", text)}
    used |= {name for text in texts for name in re.findall(r"_folder\(\"(ABPROF_\w+)\"", text)}
    assert {"ABPROF_WORKER", "ABPROF_CACHE_DIR"} <= used
    assert {name for name in used if f"`{name}`" not in CONFIG} == set()
