"""CSV files as versions of ncu write them, made from launches: columns and phrases are those of real files."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "ncu"
RAW, DETAILS = DATA / "raw_h200.csv", DATA / "details_h200.csv"
FRONT = ["ID", "Process ID", "Process Name", "Host Name"]
NVTX = ["thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
        "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"]  # fmt: skip
SHAPE = ["Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]
METRIC = ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
RULES = ["Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"]
NAMES = {"dram": "dram__bytes.sum", "l2": "lts__t_bytes.sum", "l1": "l1tex__t_bytes.sum",
         "read": "dram__bytes_read.sum", "write": "dram__bytes_write.sum"}  # fmt: skip
SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


@dataclass(frozen=True)
class L:
    """A launch to be written: bytes by short name."""

    kernel: str = "attn_fwd"
    grid: str = "(132, 1, 1)"
    block: str = "(384, 1, 1)"
    bytes: Mapping[str, float] = field(default_factory=lambda: {"dram": 3e6, "l2": 6e6, "l1": 9e6})


def moves(kernel: str, dram: float, **more: float | str) -> L:
    """A launch of `kernel` whose L2 and L1 traffic is twice and three times its DRAM traffic."""
    grid = str(more.pop("grid", "(132, 1, 1)"))
    return L(kernel, grid, bytes={"dram": dram, "l2": 2 * dram, "l1": 3 * dram, **more})  # type: ignore[dict-item]


def number(value: float, unit: str = "byte") -> str:
    """As ncu prints it in the locale C: whole bytes, else two decimals."""
    return f"{value / SCALE[unit]:,.0f}" if unit == "byte" else f"{value / SCALE[unit]:,.2f}"


def details(launches: Sequence[L], *, old: bool = False, nvtx: bool = False, rules: bool = False, unit: str = "byte") -> str:  # fmt: skip
    """The details page: a row for each metric."""
    shape = (
        ["Kernel Time", "Context", "Stream"]
        if old
        else ["Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]
    )
    header = [*FRONT, *(NVTX if nvtx else []), "Kernel Name", *shape, *METRIC, *(RULES if rules else [])]
    rows = [header]
    for place, launch in enumerate(launches):
        here = ["2024-Nov-13 18:14:36", "1", "7"] if old else ["1", "7", launch.block, launch.grid, "0", "9.0"]
        front = [str(place), "446", "python3.12", "127.0.0.1", *(["446 ...:measure:none", ""] if nvtx else [])]
        front += [launch.kernel, *here]
        tail = [""] if rules else []  # the real details page leaves the other four out
        rows.append([*front, "GPU Speed Of Light Throughput", "Memory Throughput", "%", number(84.5e3, "Kbyte"), *tail])
        for name, value in launch.bytes.items():
            rows.append([*front, "Command line profiler metrics", NAMES[name], unit, number(value, unit), *tail])
        if rules:
            said = ["SOLBottleneck", "OPT", 'Memory is more utilized, "L2" for example, than', "global", "30.1"]
            rows.append([*front, "GPU Speed Of Light Throughput", "", "", "", *said])
    return written(rows)


def raw(launches: Sequence[L], *, nvtx: bool = True, unit: str = "byte") -> str:
    """The raw page: a row for each launch, after one with units."""
    names = [name for name in NAMES if any(name in launch.bytes for launch in launches)]
    columns = {NAMES[name]: unit for name in names}
    columns |= {"dram__throughput.avg.pct": "%", "device__attribute_display_name": ""}
    rows = []
    for launch in launches:
        values = [number(launch.bytes[name], unit) if name in launch.bytes else "n/a" for name in names]
        rows.append((launch.kernel, launch.block, launch.grid, [*values, number(84.5e3, "Kbyte"), "NVIDIA H200"]))
    return written(raw_rows(columns, rows, NVTX if nvtx else []))


def raw_rows(
    columns: Mapping[str, str], launches: Iterable[tuple[str, str, str, list[str]]], more: Sequence[str] = NVTX
) -> list[list[str]]:
    """`columns`: name -> unit; launches: kernel, block, grid, and a value for each column."""
    header = [*FRONT, *more, *SHAPE]
    rows = [[*header, *columns], [""] * len(header) + [*columns.values()]]
    for place, (kernel, block, grid, values) in enumerate(launches):
        front = [str(place), "649", "python3.12", "127.0.0.1", *([""] * len(more))]
        rows.append([*front, kernel, "1", "7", block, grid, "0", "9.0", *values])
    return rows


def quoted(rows: Iterable[Sequence[str]]) -> str:
    """CSV as ncu writes it: every cell in quotes."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def written(rows: Iterable[Sequence[str]]) -> str:
    """A page after lines of ncu and of the program."""
    said = '==PROF== Connected to process 446 (/usr/bin/python3.12)\n==PROF== Profiling "attn_fwd" - 0: 0%....100% - 3 passes\n'
    return f"{said}step 1, loss 0.25, ids [0, 1]\n==PROF== Disconnected from process 446\n{quoted(rows)}"


def two_sides(folder: Path) -> tuple[Path, Path]:
    """a.csv and b.csv: 60 calls of two kernels by a newer ncu; of one, which moves 2 % more, by an older. Set-up is before them."""
    fill = "void at::native::<unnamed>::distribution_elementwise_grid_stride_kernel<float, 4>(long)"
    both = [moves("attn_fwd", 201_326_592), moves("scale_kernel", 67_108_864, grid="(2048, 1, 1)")]
    one = L("attn_fwd", bytes={"dram": 205.52e6})
    before = put(folder / "a.csv", raw([moves(fill, 4.2e6)] * 3 + both * 60))
    older = details([L(fill, bytes={"dram": 4.2e6})] * 3 + [one] * 60, old=True, unit="Mbyte")
    return before, put(folder / "b.csv", older)


def put(path: Path, text: str) -> Path:
    """The file, on the disk."""
    path.write_text(text, encoding="utf-8")
    return path
