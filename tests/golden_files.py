"""What small runs look like in every format, byte for byte. `python -m tests.golden_files` writes them anew: read the diff."""

from __future__ import annotations

import re
from pathlib import Path

from abprof.extras.bot import Context, render
from abprof.records import Run
from abprof.report import legacy
from abprof.report.closing import with_closing
from abprof.report.formats import FORMATS

from . import declared, notices, runs

HERE = Path(__file__).parent / "data" / "golden"
FORMATS_KEPT = {"html": "html", "md": "md", "csv": "csv", "junit": "xml"}  # PNG follows the version of its library


def rendered() -> dict[str, bytes]:
    """File name -> what abprof makes now."""
    made = {f"legacy/{name}": text.encode() for name, text in legacy.files(*_blocks(declared.scripts())).items()}
    for name, run in (("run", runs.run()), ("declared", declared.run()), ("hostile", runs.hostile())):
        for format, ending in FORMATS_KEPT.items():
            made[f"{name}.{ending}"] = _stable(FORMATS[format](*_blocks(run)))
        made[f"{name}.txt"] = "".join(with_closing("", run)).encode()
    targets = runs.three_targets()
    made["targets.md"] = FORMATS["md"](*_blocks(targets))
    made |= {f"comment/{kind}.md": render(notices.made(kind)).encode() for kind in notices.KINDS}
    moved_on = Context(head="5" * 40, link="https://ci.example/runs/7", replaces="6" * 40)
    made["comment/outdated.md"] = render(notices.made("unchanged"), moved_on).encode()
    return made


def _blocks(run: Run) -> tuple[Run, list]:
    return run, runs.blocks(run)


def _stable(page: bytes) -> bytes:
    """Without the style and the script, which have files and tests of their own, and so without the script's hash."""
    page = re.sub(rb"<(style|script)>.*?</\1>", rb"<\1></\1>", page, flags=re.S)
    return re.sub(rb"sha256-[\w+/=]{44}", b"sha256-", page)


if __name__ == "__main__":
    for name, content in rendered().items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_bytes(content)
