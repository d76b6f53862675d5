"""Stands in for Nsight Compute where there is no GPU: takes the options that abprof gives, runs the program, and reports
launches of which the program itself leaves a line each in $FAKE_NCU_LAUNCHES. Its words and its raw page are those of ncu.

$FAKE_NCU: `denied` (no permission), `unsourced` (no source page), `interrupts` (its parent, as ^C does).
$FAKE_NCU_LACKS: metrics that it does not know.
With --nvtx-include the launches of the first call are left out: that is the one which abprof makes outside its range.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.ncu import recorded

VALUED = {"--target-processes", "--clock-control", "--metrics", "--export", "--nvtx-include", "--import", "--page",
          "--print-units", "--section", "--print-source"}  # fmt: skip
SOURCE = Path(__file__).parents[1] / "data" / "ncu" / "source.csv"  # of ncu 2025.3.1, one launch of a kernel on an H100
FLAGS = {"--nvtx", "--force-overwrite", "--csv", "--version"}
DENIED = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target "
    "device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
OF_BYTES = {"dram__bytes_read.sum": 0.25, "dram__bytes_write.sum": 0.75, "dram__bytes.sum": 1.0, "lts__t_bytes.sum": 2.0,
            "l1tex__t_bytes.sum": 3.0}  # fmt: skip


def main(words: list[str]) -> int:
    options, program = read(words)
    if "--version" in options:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.1.1.0 (build 35528883) (public-release)")
        return 0
    if "--import" in options:
        return show(options)
    return record(options, program)


def mode() -> str:
    return os.environ.get("FAKE_NCU", "")


def read(words: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name = words.pop(0)
        if name not in VALUED | FLAGS:
            sys.exit(f"==ERROR== unrecognised option '{name}'. Use --help for further information.")
        options[name] = words.pop(0) if name in VALUED else ""
    return options, words


def record(options: dict[str, str], program: list[str]) -> int:
    assert (options["--target-processes"], options["--clock-control"]) == ("all", "none"), options
    assert os.environ["LC_ALL"] == "C"
    report = options["--export"].replace("%%", "\0")
    assert "%" not in report, "a macro"
    report = report.replace("\0", "%")
    metrics = options["--metrics"].split(",")
    lacking = [name for name in os.environ.get("FAKE_NCU_LACKS", "").split(",") if name in metrics]
    if lacking:
        escaped = lacking[0].replace(".", "\\.")
        print(f"==ERROR== Failed to find metric regex:^{escaped}$\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "launches"
        lines.touch()
        child = subprocess.Popen(program, env={**os.environ, "FAKE_NCU_LAUNCHES": str(lines)})
        print(f"==PROF== Connected to process {child.pid} ({program[0]})", flush=True)
        code = child.wait()
        print(f"==PROF== Disconnected from process {child.pid}")
        launches = [json.loads(line) for line in lines.read_text().splitlines()]
    if "--nvtx-include" in options:
        launches = [launch for launch in launches if launch["call"] > 0]
    if mode() == "interrupts":
        os.kill(os.getppid(), signal.SIGINT)
    if mode() == "denied":
        print(DENIED)
        return 1
    if code:
        print("==ERROR== The application returned an error code (1).")
    if not launches:
        print("==WARNING== No kernels were profiled.")
        return code
    made = {"metrics": metrics, "launches": launches, "section": options.get("--section")}
    Path(report).write_bytes(b"NVR\0" + json.dumps(made).encode())
    print(f"==PROF== Report: {report}")
    return code


def show(options: dict[str, str]) -> int:
    """The raw page; or the source page, which has a recorded kernel's table under each launch's name.

    Without LC_ALL=C or base units it is unreadable: abprof must set both."""
    assert os.environ["LC_ALL"] == "C"
    kept = json.loads(Path(options["--import"]).read_bytes()[4:])
    if options["--page"] == "source":
        if mode() == "unsourced":
            return 1
        assert options == {**options, "--csv": "", "--print-source": "sass"}, options
        assert kept["section"] == "SourceCounters"
        table = SOURCE.read_text().split("\n", 1)[1]
        print("".join(f'"Kernel Name","{launch["kernel"]}",\n{table}' for launch in kept["launches"]), end="")
        return 0
    assert options == {**options, "--csv": "", "--page": "raw", "--print-units": "base"}, options
    columns = {name: unit(name) for name in kept["metrics"]}
    rows = []
    for launch in kept["launches"]:
        values = [f"{value(name, launch):,.2f}".removesuffix(".00") for name in columns]
        block, grid = launch.get("block", "(128, 1, 1)"), launch.get("grid", "(132, 1, 1)")
        rows.append((launch["kernel"], block, grid, values))
    print(recorded.quoted(recorded.raw_rows(columns, rows)), end="")
    return 0


def unit(name: str) -> str:
    if name.endswith(".per_second"):
        return "byte/s"
    return "byte" if "bytes" in name and name.endswith(".sum") else "ns" if "duration" in name else ""


def value(name: str, launch: dict[str, float]) -> float:
    """Return the launch's own value, or one from its bytes: 1 byte takes 1 ns."""
    if name in launch:
        return launch[name]
    if name.removesuffix(".per_second") in OF_BYTES:
        factor = OF_BYTES[name.removesuffix(".per_second")]
        return factor * 1e9 if name.endswith(".per_second") else factor * launch["bytes"]
    return launch["bytes"] if name == "gpu__time_duration.sum" else 0.0
