"""What goes to a package index: a wheel and a source distribution that builds the same wheel, and the index's page."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]


def build(source: Path, out: Path, *kinds: str) -> Path:
    """Build with the hatchling that is here, without a network."""
    words = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(out), str(source)]
    subprocess.run(words, check=True, capture_output=True)
    return next(out.glob("*.whl"), next(out.iterdir()))


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel_and_the_index_page_is_whole(tmp_path: Path) -> None:
    wheel = build(ROOT, tmp_path / "dist", "--wheel")
    archive = build(ROOT, tmp_path / "source", "--sdist")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path / "unpacked", filter="data")
    (tree,) = (tmp_path / "unpacked").iterdir()
    assert {"docs", "tests", "kernels", "workloads", "templates", "llms.txt", "skills"} <= {
        p.name for p in tree.iterdir()
    }
    assert not [
        path for path in tree.rglob("*") if path.name in {"runs", ".git", "__pycache__"} or "_cache/" in str(path)
    ]
    assert build(tree, tmp_path / "again", "--wheel").read_bytes() == wheel.read_bytes()

    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", wheel, archive],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    with zipfile.ZipFile(wheel) as content:
        (name,) = (path for path in content.namelist() if path.endswith(".dist-info/METADATA"))
        page: Message = BytesParser().parsebytes(content.read(name))
        assert {"kernels", "workloads", "templates"} == {
            p.split("/")[2] for p in content.namelist() if "_bundled/" in p
        }
    for field in (
        "Summary",
        "Project-URL",
        "License-Expression",
        "Keywords",
        "Classifier",
        "Requires-Python",
        "Author",
    ):
        assert page[field], field
    text = page.get_payload()
    assert page["Description-Content-Type"] == "text/markdown"
    assert isinstance(text, str)
    assert "pip install abprof" in text
    parts = [part for token in MarkdownIt("commonmark").enable("table").parse(text) for part in token.children or ()]
    links = [
        str(part.attrs.get("href") or part.attrs.get("src")) for part in parts if part.type in {"link_open", "image"}
    ]
    assert [link for link in links if not link.startswith("https://")] == [], "a path leads nowhere on an index"
    assert not [part for part in parts if part.type == "html_inline"], "pictures and links to files of the checkout"
