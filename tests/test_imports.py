"""Who may import what: the parent never imports torch, the worker nothing but the standard library and torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "abprof"
# selfcheck/tree is a repository of its own: it is mounted, never imported.
FILES = sorted(file for file in ROOT.rglob("*.py") if "tree" not in file.relative_to(ROOT).parts)

# Third-party package -> the files or folders of abprof/ that may import it.
DOORWAYS = {
    "torch": ("kit.py", "worker/", "adapters/"),
    "triton": (
        "adapters/reports.py",
        "worker/compiles.py",
        "worker/proton.py",
        "worker/identity.py",
        "worker/clocks/cuda.py",
    ),
    "cupti": ("worker/clocks/cupti.py",),
    "git": ("repo/command.py",),
    "github": ("publish/github.py", "publish/github_refusals.py"),
    "requests": ("publish/github_refusals.py",),
    "pandas": ("report/",),
    "jinja2": ("report/",),
    "scipy": ("stats.py",),
    "pynvml": ("devices/cuda.py",),
    "sqlite3": ("history/index.py",),
    "typer": ("cli/",),
    "submitit": ("shards/slurm.py",),
    "ray": ("shards/ray_connection.py",),
    "tomllib": ("toml.py",),
    "watchfiles": ("extras/watch/loop.py",),
    "packaging": ("dists/needs.py",),
    "subprocess": ("proc/", "worker/bench.py"),
}
# Stages do not import each other: only the hallway knows the rooms.
STAGES = {"repo", "plan", "build", "measure", "verdict", "report"}
STAGE_OF = {
    "survey.py": "plan",
    "plan.py": "plan",
    "build.py": "build",
    "builder.py": "build",
    "measure.py": "measure",
    "opening.py": "measure",
    "sitting.py": "measure",
    "seat.py": "measure",
    "graphed.py": "measure",
    "profiled_pass.py": "measure",
    "timers.py": "measure",
    "warming.py": "measure",
    "crew.py": "measure",
    "relay.py": "measure",
    "sustained.py": "measure",
    "verdict.py": "verdict",
    "comparison.py": "verdict",
    "digest.py": "verdict",
    "evidence.py": "verdict",
    "gathering.py": "verdict",
    "kept.py": "verdict",
}


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", DOORWAYS)
def test_one_doorway_per_foreign_thing(package: str) -> None:
    inside = [name(f) for f in FILES if any(i.split(".")[0] == package for i in imports(f))]
    assert inside, f"nothing imports {package} any more: take it out of the table"
    for file in inside:
        assert file.startswith(DOORWAYS[package]), f"abprof/{file} imports {package}"


def test_the_worker_imports_the_standard_library_and_torch_only() -> None:
    ours = {"abprof.records.messages", "abprof.kit", "abprof.adapters"}
    for file in [
        f
        for f in FILES
        if name(f).startswith(("adapters/", "worker/", "wire/")) or name(f) in {"kit.py", "__init__.py"}
    ]:
        for module in imports(file):
            top = module.split(".")[0]
            mine = module.startswith("abprof.worker") or any(module == o or module.startswith(o + ".") for o in ours)
            known = (
                top in sys.stdlib_module_names
                or top in {"torch", "triton", "__future__"}
                or name(file) in DOORWAYS.get(top, ())
            )
            assert mine or known or module == "abprof", f"abprof/{name(file)} imports {module}"


def test_stages_do_not_import_each_other() -> None:
    for file in FILES:
        mine = STAGE_OF.get(name(file)) or (name(file).split("/")[0] if "/" in name(file) else "")
        if mine not in STAGES:
            continue
        for module in imports(file):
            parts = module.split(".")
            other = STAGE_OF.get(f"{parts[1]}.py", parts[1]) if parts[0] == "abprof" and len(parts) > 1 else mine
            assert other == mine or other not in STAGES, f"abprof/{name(file)} ({mine}) imports {module}"


def test_the_parent_holds_no_torch() -> None:
    code = "import sys, abprof.cli, abprof.session, abprof.report; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_loads_nothing_that_a_verb_would_need() -> None:
    late = "{'torch', 'github', 'requests', 'jinja2', 'pandas', 'numpy', 'git', 'scipy'}"
    code = "import sys; from abprof.cli import run_command_line as run; run(['--help']); "
    code += f"sys.exit(str({late} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
