"""Expected files of small runs, byte for byte: the formats of the five original systems, and one page.

`python -m tests.golden_files` writes them anew: read the diff.
"""

from __future__ import annotations

import re
from pathlib import Path

from abprof.extras.bot import render
from abprof.report import legacy, suite_csv

from . import declared, notices, reports, runs

HERE = Path(__file__).parent / "data" / "golden"
OTHERS = ("fmha_scaling", "bubble_reduction")  # files of these names are kept of one side and way: they have gaps there
UNSAVED = ("hostile", "nothing_measured")  # test_bot_comment says that one is harmless, and what the other answers


def rendered() -> dict[str, bytes]:
    """Return file name -> abprof's current content."""
    run, scripts = runs.run(), declared.scripts()
    made = {
        f"legacy/{name}": text
        for name, text in legacy.files(scripts, runs.blocks(scripts)).items()
        if not name.startswith(OTHERS) or ("feature" in name and "-bwd" not in name)
    }
    made |= {f"suites/{name}": text for name, text in suite_csv.files(run).items()}
    made |= {f"suites/{name}": text for name, text in suite_csv.files(declared.run()).items()}
    made["run.md"] = reports.markdown(run, runs.blocks(run))
    moved_on = {"head": "5" * 40, "link": "https://ci.example/runs/7", "replaces": "6" * 40}
    comments = {kind: render(notices.made(kind)) for kind in notices.KINDS if kind not in UNSAVED}
    comments["outdated"] = render(notices.made("unchanged"), **moved_on)
    environment = re.findall(r"<details><summary>Environment.*?</details>", comments["act"], re.DOTALL)[0]
    for kind, text in comments.items():  # which runs of one machine have in common
        made[f"comment/{kind}.md"] = text if kind == "act" else text.replace(environment, "(environment as in act.md)")
    return {name: text.encode() for name, text in made.items()}


if __name__ == "__main__":
    for name, content in rendered().items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_bytes(content)
