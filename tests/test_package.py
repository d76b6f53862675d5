"""What goes to a package index: a wheel and a source distribution, and the index's page; which modules processes load."""

import os
import subprocess
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
FIELDS = ("Summary", "Project-URL", "License-Expression", "Keywords", "Classifier", "Requires-Python", "Author")


def build(source: Path, kind: str, out: Path) -> Path:
    """Build with the hatchling that is here, without a network."""
    words = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(out), str(source)]
    subprocess.run(words, check=True, capture_output=True)
    return next(out.iterdir())


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel_and_the_index_page_is_whole(tmp_path: Path) -> None:
    wheel, archive = build(ROOT, "wheel", tmp_path / "a"), build(ROOT, "sdist", tmp_path / "b")
    (tmp_path / "c").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path / "c"], check=True)
    (tree,) = (tmp_path / "c").iterdir()
    there = {path.name for path in tree.iterdir()}
    assert {"docs", "tests", "kernels", "workloads", "templates", "llms.txt", "skills"} <= there
    assert not {"runs", ".git"} & there
    assert build(tree, "wheel", tmp_path / "d").read_bytes() == wheel.read_bytes()
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, archive], check=True)

    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "site")
        (name,) = (path for path in content.namelist() if path.endswith(".dist-info/METADATA"))
        page = BytesParser().parsebytes(content.read(name))
    assert [field for field in FIELDS if not page[field]] == []
    text = str(page.get_payload())
    assert "pip install abprof" in text
    parts = [part for token in MarkdownIt().enable("table").parse(text) for part in token.children or ()]
    assert not [part.type for part in parts if part.type in {"image", "html_inline"}]
    links = [str(part.attrs["href"]) for part in parts if part.type == "link_open"]
    assert [link for link in links if not link.startswith("https://")] == [], "a path leads nowhere on an index"

    code = "from pathlib import Path; from abprof.extras import demo; from abprof.system.paths import bundled; "
    code += "print(bundled('templates')); demo.make(Path('made'))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.check_output([sys.executable, "-P", "-c", code], env=env, cwd=tmp_path, text=True)
    assert found.strip() == str(tmp_path / "site" / "abprof" / "_bundled" / "templates"), "not the checkout's"
    assert (tmp_path / "made" / "kernels" / "ffa" / "autograd.py").exists()
    assert (tmp_path / "made" / "workloads" / "dense.py").exists()


def test_the_parent_holds_no_torch() -> None:
    code = "import sys, abprof.cli, abprof.session, abprof.report; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_loads_nothing_that_a_verb_would_need() -> None:
    late = "{'torch', 'triton', 'github', 'requests', 'jinja2', 'pandas', 'numpy', 'git', 'scipy', 'pynvml'}"
    code = "import sys, abprof.__main__; from abprof.cli import run_command_line as run; run(['--help']); "
    code += f"sys.exit(str({late} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
