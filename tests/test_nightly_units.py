"""The timer's files: what they start is what was meant, whatever paths and branches are called."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.extras.nightly.units import NAMES, Timed, units
from abprof.records.errors import AbprofError
from tests.gitrepo import GitRepo, make_repo

PLAIN = Timed(Path("/srv/team repo"), "main", "02:17", sys.executable, "/usr/local/bin:/usr/bin")
ODD = replace(PLAIN, branch='a b$(touch x)`y`"z"%n\'q\\', repo=Path('/srv/100%/$HOME "x"'), more=("--only", "mask=50%"))


def test_all_of_them_name_the_command() -> None:
    made = units(PLAIN)
    assert set(made) == set(NAMES)
    assert "@" not in "".join(made.values())
    service = configparser.ConfigParser(interpolation=None, strict=True)
    service.optionxform = str  # type: ignore[assignment,method-assign]
    service.read_string(made["abprof-nightly.service"])
    assert service["Service"]["ExecStart"].startswith(
        f'"{sys.executable}" "-m" "abprof" "nightly" "--quiet" "--repo" "/srv/team repo"'
    )
    assert service["Service"]["WorkingDirectory"] == "/srv/team repo"
    assert service["Service"]["ExecStartPre"].endswith("git fetch --quiet --all")
    assert "OnCalendar=*-*-* 02:17:00\nPersistent=true" in made["abprof-nightly.timer"]


def test_cron_gives_the_shell_exactly_these_words(tmp_path: Path) -> None:
    """The line as cron hands it on, its escaped per cent signs plain again, run by a shell; the command tells its words."""
    repo, origin = tmp_path / "100% of $HOME \"x\" 'y'", make_repo(tmp_path / "origin")
    origin.commit("One", {"a": "1"})
    subprocess.run(["git", "clone", "-q", str(origin.path), str(repo)], check=True)
    news = origin.commit("Two", {"a": "2"})
    teller = tmp_path / "tell"
    teller.write_text(f"#!{sys.executable}\nimport sys, json; print(json.dumps(sys.argv[1:]))\n")
    teller.chmod(0o755)
    timed = replace(ODD, repo=repo, python=str(teller))
    line = units(timed)["crontab"].splitlines()[-1]
    minute, hour, *_, command = line.split(" ", 5)
    assert (minute, hour) == ("17", "2")
    assert "%" not in command.replace("\\%", "")
    subprocess.run(["sh", "-c", command.replace("\\%", "%")], check=True, cwd=tmp_path, env={"HOME": str(tmp_path)})
    said = (tmp_path / "abprof-nightly.log").read_text()
    assert json.loads(said) == list(timed.command[1:])
    assert not (repo / "x").exists()
    assert GitRepo(repo).git("rev-parse", "origin/main") == news  # it was fetched


def test_systemd_takes_them(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze on this machine")
    for timed in (PLAIN, ODD):
        for name, text in units(replace(timed, repo=tmp_path)).items():
            (tmp_path / name).write_text(text)
        files = [str(tmp_path / name) for name in NAMES[:2]]
        done = subprocess.run([tool, "verify", *files], capture_output=True, text=True, check=False)
        ours = [line for line in done.stderr.splitlines() if "abprof-nightly" in line]
        assert not ours, done.stderr


@pytest.mark.parametrize(
    "timed", [replace(PLAIN, at="2:17"), replace(PLAIN, at="24:00"), replace(PLAIN, branch="a\nb")]
)
def test_what_cannot_be_timed(timed: Timed) -> None:
    with pytest.raises(AbprofError):
        units(timed)


def repository(folder: Path) -> None:
    """One with a commit on the branch dev."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q", "-b", "dev"), (*who, "commit", "-q", "--allow-empty", "-m", "First")):
        subprocess.run(["git", "-C", str(folder), *words], check=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--branch", "nosuch"], "'nosuch'"),
        (["--branch", "dev", "--", "--presett", "x"], "--presett"),
        (["--branch", "dev", "--", "--keep-nights", "0"], "--keep-nights"),
        (["--branch", "dev", "--", "--budget", "soon"], "--budget"),
        (["--branch", "dev", "--", "other"], "'other' is not an option"),
        (["--branch", "dev", "--", "--resume", "x"], "--resume: not at night"),
    ],
)
def test_init_writes_nothing_that_no_night_could_begin_with(tmp_path, capsys, words, says) -> None:
    repository(tmp_path)
    assert run_command_line(["init", "--nightly", "--repo", str(tmp_path), *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [".git"]


def watched(tmp_path: Path, capsys: pytest.CaptureFixture[str], clone: Path) -> str:
    assert run_command_line(["init", "--nightly", "--repo", str(clone)]) == 0
    named = (clone / "abprof-nightly" / "abprof-nightly.service").read_text().split('"--branch" "')[1].split('"')[0]
    assert f"{named} is watched" in capsys.readouterr().out
    shutil.rmtree(clone / "abprof-nightly")
    return named


def test_init_watches_what_others_push_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = make_repo(tmp_path / "origin")
    origin.commit("One", {"a": "1"})
    origin.git("switch", "--quiet", "--create", "trunk")
    clone = GitRepo(tmp_path / "clone")
    subprocess.run(["git", "clone", "-q", str(origin.path), str(clone.path)], check=True)
    clone.git("switch", "--quiet", "--create", "mine")
    assert watched(tmp_path, capsys, clone.path) == "origin/trunk"
    clone.git("remote", "set-head", "origin", "--delete")
    assert watched(tmp_path, capsys, clone.path) == "origin/main", "as most call it"
    clone.git("update-ref", "-d", "refs/remotes/origin/main")
    assert run_command_line(["init", "--nightly", "--repo", str(clone.path)]) == 2
    assert "does not know which branch others push to" in capsys.readouterr().err
    clone.git("remote", "remove", "origin")
    assert watched(tmp_path, capsys, clone.path) == "mine", "without a remote there is nobody else"


def test_init_without_nightly_takes_no_further_words(tmp_path, capsys) -> None:
    repository(tmp_path)
    assert run_command_line(["init", "--github", "--repo", str(tmp_path), "foo"]) == 2
    assert "'foo' is not an option" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [".git"]


def test_init_writes_them_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["init", "--nightly", "--repo", str(tmp_path), "--branch", "dev", "--at", "03:30"]
    assert run_command_line(words) == 2  # no repository
    repository(tmp_path)
    assert run_command_line([*words, "--", "--preset", "full"]) == 0
    folder = tmp_path / "abprof-nightly"
    assert sorted(path.name for path in folder.iterdir()) == sorted([".gitignore", *NAMES])
    assert '"--branch" "dev" "--preset" "full"' in (folder / "abprof-nightly.service").read_text()
    assert "systemctl --user enable" in capsys.readouterr().out
    assert run_command_line([*words, "--", "--preset", "full"]) == 0  # the same again is no change
    assert run_command_line(words) == 2
    assert "is there and differs (--overwrite replaces it; nothing was written)" in capsys.readouterr().err
    assert run_command_line([*words, "--overwrite"]) == 0
    assert '"--branch" "dev"\n' in (folder / "abprof-nightly.service").read_text()
    assert run_command_line(["init", "--repo", str(tmp_path)]) == 2
    capsys.readouterr()
    assert run_command_line(["init", "--repo", str(tmp_path), "--at", "03:30"]) == 2
    assert capsys.readouterr().err == "abprof: --at: goes with --nightly\n"
    assert run_command_line([*words, "--workloads-dir", "bench"]) == 2
    assert capsys.readouterr().err == "abprof: --workloads-dir: does not go with --github or --nightly\n"
