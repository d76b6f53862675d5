"""Wheels and indexes of them, made here: a wheel is a zip file with three texts."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    tag: str = "py3-none-any",
    needs: Sequence[str] = (),
) -> Path:
    """The wheel of a distribution with these files, path -> text, in `folder`, and these requirements."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    asked = "".join(f"Requires-Dist: {need}\n" for need in needs)
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in texts.items():
            archive.writestr(zipfile.ZipInfo(place), text)
        rows = [f"{place},," for place in (*texts, f"{info}/RECORD")]
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(rows) + "\n")
    return path


def index(folder: Path, name: str, links: Mapping[Path, str]) -> str:
    """The address of a simple index (PEP 503) of these files, each with its attributes, such as data-yanked."""
    page = folder / name / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("".join(f'<a href="{file.as_uri()}" {more}>{file.name}</a>\n' for file, more in links.items()))
    return folder.as_uri()


def only(**places: str) -> dict[str, str]:
    """Return pip's variables for these places only, without this machine's settings."""
    blank = {"PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}
    return {**blank, **places}
