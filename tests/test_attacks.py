"""Attacks on a speed: kernels that do not do the work, or forge its time (tests/attacks/, one file each).

`python -m tests.test_attacks [NAME ...]` prints the table of docs/RELIABILITY.md. Attacks in tests/attacks/gpu/ need a GPU.
"""

import sys
import tempfile
from pathlib import Path

import pytest

from abprof.records import LOOKS
from tests.gitrepo import GitRepo, make_repo
from tests.sandboxes import needs_sandbox
from tests.tinyrepo import Done, abprof_afresh

ATTACKS = Path(__file__).parent / "attacks"
FILES = {file.stem: file for file in sorted(ATTACKS.glob("*.py"))}
ON_GPU = {file.stem: file for file in sorted((ATTACKS / "gpu").glob("*.py"))}
# Do the work where inputs change, or where they are stopped outside their turns, so they may be `same`: and the one that is
# slow in half of its epochs, in one of 16 runs of four epochs.
WORKS = {"memo_by_version", "memo_by_sample", "stray_b", "slow_epochs_dropped"}
FAMILIES = [  # call_count and clock_at_a_quarter are in test_bot_command.py, threads in test_outside_turns.py
    "lazy_subclass", "memo_by_address", "turns_read_zero", "rewritten_source", "hog_by_unreaped_children",
    "calls_as_one_batch", "work_after_the_reply",
]  # fmt: skip
SPEED = {"faster", "slight", "same"}
HONEST = """
import torch


def honest(x, w):
    return x @ w @ w @ w


run = honest
"""
WORKLOAD = '''
"""Three products of matrices."""
import torch
from abprof.kit import Op, compare

API = 1
KERNEL = SUITE = "%s"
PRESETS = {"default": {"n": [%d]}}

def inputs(case, device, seed):
    n, generator = case["n"], torch.Generator(device).manual_seed(seed)
    x, w = (torch.randn(rows, n, generator=generator, device=device) for rows in (min(n, 512), n))
    return x, w / n**0.5

def prepare(kernel, variant, case, inputs):
    return Op(lambda: kernel.run(*inputs))

def reference(case, inputs):
    x, w = (each.double() for each in inputs)
    return x @ w @ w @ w

def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-4, atol=0.0)
'''


def attacked(folder: Path, names: list[str]) -> GitRepo:
    """Return a repository: honest kernels on main, the attacks on branch `attack`, where `honest` has another comment."""
    repo, every, files, size = make_repo(folder), [*names, "honest"], FILES | ON_GPU, 4096 if on_gpu(names) else 320
    base = {f"kernels/{name}/__init__.py": HONEST for name in every}
    workloads = {f"workloads/{name}.py": WORKLOAD % (name, size) for name in every}
    repo.commit("honest", base | workloads | {".gitignore": "runs/\n"})
    repo.branch("attack")
    changed = {f"kernels/{name}/__init__.py": f"{HONEST}\n\n{files[name].read_text()}" for name in names}
    repo.commit("much faster", changed | {"kernels/honest/__init__.py": HONEST + "# the same\n"})
    return repo


def on_gpu(names: list[str]) -> bool:
    """Whether the attacks need a GPU."""
    return bool({*names} & ON_GPU.keys())


def measured(folder: Path, names: list[str], *options: str) -> Done:
    """Compare the attacks with honest base in one run."""
    repo = attacked(folder / "repo", names)
    device = "cuda" if on_gpu(names) else "cpu"
    asked = (
        "--device",
        device,
        "--no-peers",
        "--epochs",
        str(LOOKS[0]),
        "--timeout",
        "30s",
        "--budget",
        "60m",
        "--json",
    )
    done = abprof_afresh("main", "attack", *asked, *options, cwd=repo.path, home=folder / "home", OMP_NUM_THREADS="1")
    assert done.code in (0, 1, 4), done.err
    return done


def answers(done: Done) -> dict[str, tuple[str, str]]:
    """Attack -> verdict and why."""
    why = {row["cell"]: row["reason"] for row in done.run["observations"] if row["arm"] == "target"}
    found = {}
    for row in done.run["comparisons"]:
        reasons = "; ".join(row["reasons"])
        found[row["cell"].partition("/")[0]] = row["verdict"], why.get(row["cell"], "") or reasons
    return found


@needs_sandbox
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(FILES), marks=[pytest.mark.nightly, pytest.mark.timeout(3600)], id="all"),
        pytest.param(FAMILIES, marks=pytest.mark.slow, id="one of a family"),
        pytest.param([*ON_GPU], marks=[pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(3600)], id="gpu"),
    ],
)
def test_no_attack_gets_a_speed(tmp_path: Path, names: list[str]) -> None:
    found = answers(measured(tmp_path, names, "--untrusted"))
    assert found.keys() == {*names, "honest"}
    assert found["honest"][0] in {"same", "unclear"}, found["honest"]
    passed = {name: answer for name, answer in found.items() if answer[0] in SPEED and name not in {"honest", *WORKS}}
    assert passed == {}
    assert {found[name][0] for name in WORKS & {*names}} <= {"same", "unclear", "slight", "slower", "broken"}


def main(names: list[str]) -> None:
    """Run the attacks by hand and with --untrusted, and print both verdicts."""
    runs = []
    for options in ((), ("--untrusted",)):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(answers(measured(Path(folder), names, *options)))
    print(table([{name: verdict for name, (verdict, _) in run.items()} for run in runs]))


def table(runs: list[dict[str, str]]) -> str:
    """Return the attacks by their verdicts in each of `runs`."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(runs[-1]):
        alike.setdefault(tuple(run.get(name, "not run") for run in runs), []).append(name)
    rows = [
        f"| {' | '.join(verdicts)} | {len(names)} | {', '.join(names)} |" for verdicts, names in sorted(alike.items())
    ]
    return "\n".join(["| by hand | `--untrusted` | | attacks |", "|---|---|---:|---|", *rows])


if __name__ == "__main__":
    main(sys.argv[1:] or list(FILES))
