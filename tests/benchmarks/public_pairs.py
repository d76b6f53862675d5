"""`python -m tests.benchmarks.public_pairs --repos FOLDER [--only NAME ...] [--budget 45s] [--reference [TIME]] [--out FILE.md]`

What a budget decides of seven pairs of commits of public Triton packages, 12 cells each, calls of about 16 us to 5 ms on
an H100. For each pair, makes a repository of the two commits' files, abprof.toml and the workload from public_pairs/, as a
user would write them. Builds are cached by a first run, which is not timed. `--reference` measures each pair once more,
for TIME (300s) or to +/- 0.25 %, and counts the verdicts that this longer run contradicts.

FOLDER holds the commits' files, which are not part of this repository; `--fetch` makes it: from GitHub, or with
`--mirror PATH` from git directories PATH/OWNER+NAME/repo.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import stranger
from tests.gitrepo import GitRepo, make_repo

Row = dict[str, Any]  # a comparison of run.json

WORKLOADS = Path(__file__).with_suffix("")
THRESHOLD, MARGIN = 1.5, 0.5  # per cent: abprof's on a GPU


@dataclass(frozen=True)
class Pair:
    """Two commits of a public repository. `package` is its kernel package: a folder, imported by its name, or one file."""

    repository: str  # OWNER/NAME on GitHub
    commits: str  # BASE..TARGET
    package: str
    paths: tuple[str, ...] = ()  # the files of a folder that the kernels need; `PATH|TEXT`: the part of one before TEXT
    kernel: str = ""  # name of the package, where it is not the path's

    @property
    def sides(self) -> dict[str, str]:
        return dict(zip(("base", "target"), self.commits.split(".."), strict=True))

    @property
    def name(self) -> str:
        return self.kernel or Path(self.package).stem


def liger(commits: str, file: str) -> Pair:
    needed = (f"ops/{file}.py", "ops/utils.py", "utils.py")
    return Pair(
        "linkedin/Liger-Kernel", commits, "src/liger_kernel", tuple(f"src/liger_kernel/{name}" for name in needed)
    )


def flash(commits: str, file: str) -> Pair:
    return Pair("Dao-AILab/flash-attention", commits, f"flash_attn/ops/triton/{file}.py")


PAIRS = {
    "liger_layer_norm": liger(
        "397ab301bb5f3237b703c9f08cf987241ddc9460..540575bc2bbaa94b7d96b7616cd6c009eeffacb1", "layer_norm"
    ),
    "liger_group_norm": liger(
        "5057ca8799f2ad2d7e36a1c1440a68f4f037f27b..dea3a772e18bb2610341f7bd9e7ecb1284bec023", "group_norm"
    ),
    "liger_add_rms_norm": liger(
        "2bf7117bd9552957442f4a002b0c092537854517..b7025a70279b7bea1e635a92f20173abb66498a0", "fused_add_rms_norm"
    ),
    "flash_rotary": flash(
        "9b5ae42f899cd3ea3801e9c1780e57ead5422054..dc8fd708575a530bf773645efdc36b6bc6c53552", "rotary"
    ),
    "flash_cross_entropy": flash(
        "32792d37ec66902e5d82e149971daacbee8b55d7..d79f9b41a84a7bc39b77e2f2938f5dc637f93ab0", "cross_entropy"
    ),
    "unsloth_rope": Pair(
        "unslothai/unsloth",
        "70f271b1d324b08699b667f9bf61486170521ad7..6a437e43f58eea43635d936486ec5f83d3cddc7f",
        "unsloth",
        ("unsloth/kernels/rope_embedding.py", "unsloth/kernels/utils.py|import bitsandbytes"),
    ),
    "lightllm_prefill": Pair(
        "ModelTC/lightllm",
        "0d418dcaca3c2090fcae2a87e5411e08e1ecbd42..c99307c4ed1bbdde2135a30b470ec28bb6882649",
        "lightllm/models/llama/triton_kernel/context_flashattention_nopad.py",
        kernel="prefill",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repos", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="NAME")
    parser.add_argument("--budget", default="45s")
    parser.add_argument("--reference", nargs="?", const="300s", metavar="TIME")
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--mirror", type=Path, metavar="PATH")
    parser.add_argument("options", nargs="*", help="more options of abprof, after --")
    given = parser.parse_args()
    if given.fetch or given.mirror:
        for name in given.only:
            fetch(PAIRS[name], given.repos / name, given.mirror)
        return
    results = []
    for name in given.only:
        with tempfile.TemporaryDirectory() as place:
            repository = make(name, given.repos / name, Path(place) / "repository").path
            try:
                measured(repository, *stranger.BUILD, *given.options)
                found = measured(repository, "--budget", given.budget, *given.options)
                long = ("--budget", given.reference, "--precision", "0.25", *given.options)
                results.append(Result(name, found, measured(repository, *long) if given.reference else None))
            except stranger.NoRunError as error:  # the other pairs are worth having
                print(f"\n### {name}: no run\n{error}", flush=True)
                continue
        print(results[-1].details(), flush=True)
        if given.out:
            given.out.write_text(report(results))
    print(report(results, details=False))


def fetch(pair: Pair, folder: Path, mirror: Path | None) -> None:
    """Write both commits' files to `folder`, one folder a side."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        source = mirror / pair.repository.replace("/", "+") / "repo" if mirror else Path(place) / "clone"
        if not mirror:
            address = f"https://github.com/{pair.repository}"
            subprocess.run(["git", "clone", "-q", "--filter=blob:none", "--no-checkout", address, source], check=True)
        for side, commit in pair.sides.items():
            for entry in pair.paths or (pair.package,):
                path, _, end = entry.partition("|")
                text = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=source, capture_output=True, check=True)
                target = folder / side / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text.stdout.partition(end.encode())[0] if end else text.stdout)


def make(name: str, files: Path, path: Path) -> GitRepo:
    """A repository with the branches `base` and `target`, a configuration and the workload."""
    pair = PAIRS[name]
    repository = make_repo(path)
    imported, under = (f'import = "{pair.name}"\n', "/**") if pair.paths else ("", "")
    settings = (
        f'schema = 1\n\n[kernels.{pair.name}]\npath = "{pair.package}"\n{imported}inputs = ["{pair.package}{under}"]\n'
    )
    own = {"abprof.toml": settings, f"workloads/{name}.py": (WORKLOADS / f"{name}.py").read_text()}
    repository.commit("abprof's files", {**own, ".gitignore": "runs/\n"})
    for side, commit in pair.sides.items():
        repository.git("switch", "-q", "-C", side)
        shutil.copytree(files / side, path, dirs_exist_ok=True)
        if pair.paths:  # the packages' own import everything that they have
            for folder in {source.parent for source in (path / pair.package).rglob("*.py")} | {path / pair.package}:
                (folder / "__init__.py").touch()
        repository.commit(f"{pair.repository} {commit}")
    return repository


@dataclass(frozen=True)
class Measured:
    seconds: float  # from Enter to the end
    run: dict[str, Any]

    @property
    def rows(self) -> dict[str, Row]:
        return {row["cell"]: row for row in self.run["comparisons"]}


def measured(path: Path, *options: str) -> Measured:
    return Measured(*stranger.measured(path, *options, sides=("base", "target")))


@dataclass(frozen=True)
class Result:
    name: str
    found: Measured
    reference: Measured | None

    def decided(self) -> int:
        return sum(row["verdict"] not in ("unclear", "broken") for row in self.found.rows.values())

    def wrong(self) -> list[str]:
        """Cells whose verdict the reference contradicts."""
        known = self.reference.rows if self.reference else {}
        return [cell for cell, row in self.found.rows.items() if cell in known and contradicts(known[cell], row)]

    def summary(self) -> str:
        verdicts = [row["verdict"] for row in self.found.rows.values()]
        words = ("slower", "faster", "slight", "same", "unclear", "broken")
        counts = ", ".join(f"{verdicts.count(word)} {word}" for word in words if word in verdicts)
        wrong = str(len(self.wrong())) if self.reference else "-"
        return f"| {self.name} | {len(verdicts)} | {self.decided()} | {wrong} | {self.found.seconds:.1f} | {counts} |"

    def details(self) -> str:
        lines = [f"\n### {self.name}: {self.found.seconds:.1f} s", self.found.run["header"]["sentence"]]
        wrong = self.wrong()
        for cell, row in self.found.rows.items():
            line = f"- `{cell}`: {described(row)}"
            if self.reference and cell in self.reference.rows:
                line += f"; reference: {described(self.reference.rows[cell])}"
            lines.append(line + (" **wrong**" if cell in wrong else ""))
        lines += [f"- {note['text']}" for note in self.found.run["warnings"]]
        return "\n".join(lines)


def contradicts(reference: Row, row: Row) -> bool:
    """Whether the reference certainly excludes the row's verdict."""
    verdict, low, high = row["verdict"], reference["low_pct"], reference["high_pct"]
    if {verdict, reference["verdict"]} == {"slower", "faster"}:
        return True
    if low is None or high is None:
        return False
    if verdict == "same":
        return bool(low > MARGIN or high < -MARGIN)
    if verdict == "slight":
        return bool(low > THRESHOLD or high < -THRESHOLD)
    return verdict in ("slower", "faster") and low > -THRESHOLD and high < THRESHOLD


def described(row: Row) -> str:
    change = "" if row["pct"] is None else f" {row['pct']:+.2f} %"
    interval = "" if row["low_pct"] is None else f" ({row['low_pct']:+.2f} to {row['high_pct']:+.2f})"
    reasons = f" {', '.join(row['reasons'])}" if row["reasons"] else ""
    return f"{row['verdict']}{change}{interval}{reasons}, {row['epochs']} epochs"


def report(results: Sequence[Result], *, details: bool = True) -> str:
    lines = ["| pair | cells | decided | wrong | seconds | verdicts |", "|---|---:|---:|---:|---:|---|"]
    lines += [result.summary() for result in results]
    cells, decided = sum(len(one.found.rows) for one in results), sum(one.decided() for one in results)
    wrong = sum(len(one.wrong()) for one in results if one.reference)
    referred = sum(len(one.found.rows) for one in results if one.reference)
    lines.append(f"\n{decided} of {cells} decided; {wrong} wrong of {referred} with a reference")
    return "\n".join([*lines, *(one.details() for one in results if details), ""])


if __name__ == "__main__":
    main()
