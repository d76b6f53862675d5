"""Expected files of small runs, byte for byte: the formats of the five original systems, and one page.

`python -m tests.golden_files` writes them anew: read the diff.
"""

from difflib import SequenceMatcher
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
    act = comments["act"].splitlines(keepends=True)
    for kind, text in comments.items():
        made[f"comment/{kind}.md"] = text if kind == "act" else beside(act, text)
    return {name: text.encode() for name, text in made.items()}


def beside(act: list[str], text: str) -> str:
    """The text, with the lines that it has in common with act.md as their numbers there."""
    own, made = text.splitlines(keepends=True), []
    for how, begin, end, first, last in SequenceMatcher(None, act, own, autojunk=False).get_opcodes():
        made += [f"(lines {begin + 1} to {end} of act.md)\n"] if how == "equal" else own[first:last]
    return "".join(made)


if __name__ == "__main__":
    for name, content in rendered().items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_bytes(content)
