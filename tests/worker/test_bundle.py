"""The worker's code as it is copied for workers: whole, alone, by content, and once."""

from __future__ import annotations

import ast
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from abprof.builds import worker_factory

ROOT = Path(worker_factory.__file__).parents[1]


def test_only_the_workers_part_is_copied(tmp_path: Path) -> None:
    script = worker_factory.install_bundle(tmp_path)
    copied = {str(path.relative_to(script.parent)) for path in script.parent.rglob("*") if path.is_file()}
    rooms = {f"abprof/{path.relative_to(ROOT)}" for room in ("worker",) for path in (ROOT / room).rglob("*.py")}
    assert copied == {
        "run_worker.py", "abprof/__init__.py", "abprof/kit.py", "abprof/records/__init__.py",
        "abprof/records/messages.py", *rooms,
    }  # fmt: skip


def test_it_is_made_once_and_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = worker_factory.install_bundle(tmp_path)
    before = script.stat().st_ino
    assert worker_factory.install_bundle(tmp_path) == script
    assert script.stat().st_ino == before
    monkeypatch.setattr(worker_factory, "_RUN", worker_factory._RUN + "# changed\n")
    other = worker_factory.install_bundle(tmp_path)
    assert other.parent != script.parent
    assert script.exists(), "a run that uses the older one keeps it"


@pytest.mark.parametrize("spoilt", ["changed", "removed", "added", "compiled", "linked", "all a link"])
def test_what_was_written_to_since_is_put_away(tmp_path: Path, spoilt: str) -> None:
    """Code under test runs as the user whose cache it is: of one run it could change the judge of the next."""
    script = worker_factory.install_bundle(tmp_path)
    outputs, bench = (script.parent / "abprof" / "worker" / name for name in ("checks.py", "bench.py"))
    if spoilt == "changed":
        outputs.write_text(outputs.read_text().replace("max", "min"))
    elif spoilt == "removed":
        outputs.unlink()
    elif spoilt == "added":
        (script.parent / "torch.py").write_text("")
    elif spoilt == "compiled":
        py_compile.compile(str(outputs))
    elif spoilt == "linked":
        bench.rename(tmp_path / "bench.py")
        bench.symlink_to(tmp_path / "bench.py")
    else:
        script.parent.rename(tmp_path / "mine")
        script.parent.symlink_to(tmp_path / "mine")
    assert worker_factory.install_bundle(tmp_path) == script
    test_only_the_workers_part_is_copied(tmp_path)
    for path in (outputs, bench):
        assert path.read_bytes() == (ROOT / "worker" / path.name).read_bytes()
        assert not path.is_symlink()
    assert not script.parent.is_symlink()
    assert [path.name for path in (tmp_path / "worker").iterdir()] == [script.parent.name]


def test_its_messages_need_the_standard_library_alone(tmp_path: Path) -> None:
    """-S and -I hide installed packages."""
    place = worker_factory.install_bundle(tmp_path).parent
    code = f"import sys; sys.path.insert(0, {str(place)!r}); import abprof.records.messages; print(abprof.records.messages.__file__)"
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(place / "abprof" / "records" / "messages.py")


def test_the_worker_imports_the_standard_library_torch_and_its_messages_alone() -> None:
    foreign = {"torch", "triton", "cupti"}
    for file in [ROOT / "kit.py", ROOT / "records" / "messages.py", *(ROOT / "worker").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                top = name.partition(".")[0]
                ours = name.startswith(("abprof.worker.", "abprof.records.messages"))
                assert ours or top in sys.stdlib_module_names | foreign, f"{file.name} imports {name}"
