"""The worker's code as it is copied for workers: whole and alone."""

import ast
import subprocess
import sys
from pathlib import Path

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
