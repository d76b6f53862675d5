"""docs/WRITING.md's example is written to files as it stands there and driven through a real worker."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abprof.records import messages as wire
from abprof.system.processes import WorkerFault
from tests.workloads.worker import Side, side

PAGE = Path(__file__).parents[2] / "docs" / "WRITING.md"
CASE = {"rows": 64, "width": 2048, "dtype": "fp32"}


def example(root: Path) -> Path:
    """Write every fenced block that starts with a file name to that file."""
    blocks = re.findall(r"^```\w+\n(?:#|//) (\S+/\S+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert [name for name, _ in blocks] == [
        "kernels/rmsnorm/__init__.py", "kernels/rmsnorm/rmsnorm.c", "workloads/rmsnorm.py", "workloads/softmax.py",
    ]  # fmt: skip
    for name, text in blocks:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def start(root: Path, place: Path) -> Any:
    return side(root / "kernels", "rmsnorm", [root / "workloads" / "rmsnorm.py"], place)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    root = example(tmp_path_factory.mktemp("example"))
    with start(root, tmp_path_factory.mktemp("place")) as worker:
        assert worker.ask(wire.Build()).has_build
        assert worker.log_has("$ cc -O3 -shared")
        yield worker


def test_example_runs_is_right_and_is_timed(built: Side) -> None:
    assert built.open("rmsnorm", CASE).call_ns > 0
    assert built.open("rmsnorm", CASE, "peer:torch", peer="torch").call_ns > 0
    mine, peer = built.check(), built.check("peer:torch")
    assert (mine.ok, mine.reason) == (True, "")
    assert (peer.ok, peer.reason) == (True, "")
    turned: wire.Turned = built.ask(wire.Turn("base", 3, "cpu_clock", placement=1))
    assert 0 < turned.value <= turned.end - turned.start
    phased: wire.Phased = built.ask(wire.Phases("base", 3))
    assert phased.phases.keys() == {"prepare", "run"}
    assert all(phased.phases.values())
    proved: wire.Proved = built.ask(wire.Prove())
    assert (proved.ok, proved.reason) == (True, "")
    assert {a.name for a in proved.artefacts} >= {"abprof_side.rmsnorm", "rmsnorm.so"}


def test_the_shortest_one_judges_and_three_lines_make_it_time_gradients(tmp_path: Path) -> None:
    root = example(tmp_path / "repository")
    file = root / "workloads" / "softmax.py"
    assert len(file.read_text().splitlines()) < 25
    section = PAGE.read_text().split("## Forward and backward\n")[1]
    presets, prepared, referred = re.findall(r"^ *(?:PRESETS|return).*", section, re.M)[:3]
    text = re.sub(r"^PRESETS.*", presets, file.read_text(), flags=re.M)
    text = re.sub(r"^    return Op.*", prepared, text, flags=re.M)
    text = re.sub(r"^    return inputs.*", referred, text, flags=re.M)
    longer = file.with_name("gradients.py")
    longer.write_text(text.replace("import Op, compare", "import compare, directed"))
    (root / "kernels" / "softmax.py").write_text("from torch import softmax\n")
    with side(root / "kernels", "softmax", [file, longer], tmp_path / "place") as worker:
        assert [names for names, _ in worker.ask(wire.Describe("softmax")).presets["smoke"]] == [["rows"], ["width"]]
        assert worker.open("softmax", {"rows": 8, "width": 32}).call_ns > 0
        assert worker.check().ok
        for direction in ("fwd", "bwd"):
            worker.open("gradients", {"rows": 8, "width": 32, "direction": direction})
            checked = worker.check(expected=direction)
            assert (checked.ok, checked.reason) == (True, ""), direction


@pytest.mark.parametrize(
    ("file", "before", "after", "status", "message"),
    [
        ("kernels/rmsnorm/rmsnorm.c", "sum / width + eps", "sum / width * 1.001f", "wrong", "largest error"),
        ("kernels/rmsnorm/__init__.py", "def rms_norm(", "def rmsnorm(", "missing", "rms_norm"),
        ("workloads/rmsnorm.py", '["x"].is_cuda', '["x"].ndim', "unsupported", "runs on a CPU"),
    ],
)
def test_slips_in_the_example_get_the_outcome_the_page_says(
    tmp_path: Path, file: str, before: str, after: str, status: str, message: str
) -> None:
    root = example(tmp_path / "repository")
    text = (root / file).read_text()
    assert text.count(before) == 1
    (root / file).write_text(text.replace(before, after))
    (tmp_path / "place").mkdir()
    with start(root, tmp_path / "place") as worker:
        found = _outcome(worker)
    assert found[0] == status
    assert re.search(message, found[1])


def _outcome(worker: Side) -> tuple[str, str]:
    try:
        worker.ask(wire.Build())
        worker.open("rmsnorm", CASE)
        checked = worker.check()
    except WorkerFault as fault:
        return fault.status, fault.reason
    return "ok" if checked.ok else "wrong", checked.reason
