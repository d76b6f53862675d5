"""`python -m tests.benchmarks.honest [RUNS [OPTION...]]`: honest code under --untrusted, on a CPU. None may be `broken`.

Each run compares every kind of honest code in four sizes with itself (another comment), and in one with a planted change:
a quarter more work, in the target or in base. Four runs are about 200 cells of the first and 50 of the second.
"""

import collections
import sys
import tempfile
from pathlib import Path

from tests.gitrepo import GitRepo, make_repo
from tests.tinyrepo import abprof_afresh

# Kind -> a body of prepared(x, w), which returns a call, and the package's code before it.
KINDS = {
    "products": ("return lambda: (x @ w).relu_()", ""),
    "buffer kept": (
        "out = kept.setdefault(x.shape, torch.empty_like(x))\n    return lambda: torch.mm(x, w, out=out).relu_()",
        "kept = {}",
    ),
    "weights packed": (
        "packed = w.t().contiguous()\n    return lambda: torch.nn.functional.linear(x, packed).relu_()",
        "",
    ),
    "inputs overwritten": ("return lambda: x.copy_(x @ w).relu_()", "OVERWRITES = True"),
    "threads": (
        "return lambda: torch.cat([*pool.map(lambda rows: (rows @ w).relu_(), x.chunk(2))])",
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)",
    ),
    "numpy": ("return lambda: torch.from_numpy(np.maximum(x.numpy() @ w.numpy(), 0))", "import numpy as np"),
    "sparse": ("return lambda: torch.relu(x @ w.to_sparse().to_dense())", ""),
    "double precision": ("return lambda: (x.double() @ w.double()).relu_().float()", ""),
    "backward": (
        "return lambda: torch.autograd.functional.vjp(lambda x: (x @ w).relu(), x, torch.ones_like(x))[0]",
        "",
    ),
    "imported late": ("def call():\n        import scipy.fft\n        return (x @ w).relu_()\n    return call", ""),
    "collected": ("def call():\n        gc.collect()\n        return (x @ w).relu_()\n    return call", "import gc"),
    "helper process": (
        "return lambda: (x @ w).relu_()",
        "import subprocess\nhelper = subprocess.Popen(['sleep', '9999'])",
    ),
    "compiled": ("return lambda: made(x, w)", "made = torch.compile(lambda x, w: (x @ w).relu() + 0)"),
}
PACKAGE = "import torch\n\n{}\n\n\ndef prepared(x, w):\n    {}\n"
MORE = """

once = prepared


def prepared(x, w):
    call = once(x, w)
    return lambda: (once(x[: len(x) // 4].clone(), w)(), call())[1]
"""
WORKLOAD = '''
"""A product of matrices, without what is negative."""
import torch
from abprof.kit import Op, compare

API = 1
KERNEL = SUITE = "%s"
PRESETS = {"default": {"n": %s}}

def inputs(case, device, seed):
    n, generator = case["n"], torch.Generator(device).manual_seed(seed)
    x, w = (torch.randn(n, n, generator=generator, device=device) for _ in range(2))
    return x, w / n**0.5

def prepare(kernel, variant, case, inputs):
    saved = inputs[0].clone()
    reset = (lambda: inputs[0].copy_(saved)) if hasattr(kernel, "OVERWRITES") else None
    return Op(kernel.prepared(*inputs), reset=reset)

def reference(case, inputs):
    x, w = (each.double() for each in inputs)
    return (x @ w).relu()

def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-4, atol=1e-6)
'''


def repository(folder: Path) -> GitRepo:
    """Return a repository with base on main, and the target on branch `target`."""
    repo, base, target = make_repo(folder), {".gitignore": "runs/\n"}, dict[str, str]()
    for number, (kind, (body, before)) in enumerate(KINDS.items()):
        same, planted, code = f"same_{number}", f"planted_{number}", f'"""{kind}"""\n{PACKAGE.format(before, body)}'
        base |= {f"workloads/{same}.py": WORKLOAD % (same, [64, 128, 256, 384])}
        base |= {f"workloads/{planted}.py": WORKLOAD % (planted, [320])}
        both = code + MORE, code
        for name, one, other in (
            (same, code, f"{code}# the same\n"),
            (planted, both[1 - number % 2], both[number % 2]),
        ):
            base[f"kernels/{name}/__init__.py"], target[f"kernels/{name}/__init__.py"] = one, other
    repo.commit("honest", base)
    repo.branch("target")
    repo.commit("honest, too", target)
    return repo


def main(runs: str = "4", *options: str) -> None:
    counts, broken = collections.Counter[tuple[str, str]](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        repo = repository(Path(folder, "repository"))
        for _ in range(int(runs)):
            given = ("--untrusted", "--device", "cpu", "--no-peers", "--budget", "60m", "--epochs", "4", "--json")
            done = abprof_afresh("main", "target", *given, *options, cwd=repo.path, home=Path(folder))
            seen = {row["cell"]: row for row in done.run["observations"] if row["arm"] == "target"}
            for row in (row for row in done.run["comparisons"] if row["to"] == "target"):
                what, _, number = row["cell"].partition("/")[0].partition("_")
                why = seen[row["cell"]]["reason"] or "; ".join(row["reasons"])
                counts[what, f"unclear ({why})" if row["verdict"] == "unclear" else row["verdict"]] += 1
                if row["verdict"] == "broken":
                    broken.append(f"{[*KINDS][int(number)]}, {row['cell']}: {why}")
            print(table(counts), *broken, sep="\n", flush=True)


def table(counts: collections.Counter[tuple[str, str]]) -> str:
    """Return the numbers of cells by their verdicts."""
    rows = [
        f"| {verdict} | {counts['same', verdict]} | {counts['planted', verdict]} |"
        for verdict in sorted({v for _, v in counts})
    ]
    return "\n".join(["| | unchanged | planted |", "|---|---:|---:|", *rows])


if __name__ == "__main__":
    main(*sys.argv[1:])
