"""Any content of abprof.toml, pyproject.toml and waivers is read correctly or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from abprof.records.errors import AbprofError
from abprof.system import config_file as abprof_toml
from abprof.system import waiver_file
from tests.fuzz.commands import one_clear_line
from tests.fuzz.mutations import DEEP, bytes_of, hunt, many

TOML = """
schema = 1
workloads = "bench"
benchmarks = ["bench/a.py"]
[defaults]
threshold = 2.0
margin = 1
preset = "small"
budget = "10m"
timer = "auto"
[kernels.ffa]
path = "kernels/ffa"
import = "ffa.api"
inputs = ["csrc/**"]
build = ["make", "-C", "{worktree}"]
env = { A = "1" }
submodules = true
[environment]
set = { B = "2" }
allow = ["HF_TOKEN"]
[command]
build = ["true"]
[executor.slurm]
partition = "gpu"
gpus = 2
[python]
base = "/usr/bin/python3"
[[threshold]]
cells = "w/*"
percent = 3.5
"""
WAIVERS = """
schema = 1
[[waiver]]
cells = "w/case=a"
most_percent = 5.0
reason = "known"
owner = "me"
expires = 2027-01-01
"""
Read = Callable[[str], Any]
READERS: dict[str, tuple[str, Read]] = {
    "abprof.toml": (TOML, lambda text: abprof_toml.parse_file(text, "abprof.toml")),
    "pyproject.toml": (
        "[tool.abprof]\n" + TOML.replace("\n[", "\n[tool.abprof.").replace("[tool.abprof.[", "[[tool.abprof."),
        lambda text: abprof_toml.parse_file(text, "pyproject.toml", ("tool", "abprof")),
    ),
    "waivers": (WAIVERS, lambda text: waiver_file.parse(text, "waivers.toml")),
}


def refused_or_read(read: Read, data: bytes) -> None:
    try:
        read(data.decode(errors="replace"))
    except AbprofError as error:
        one_clear_line(error)


@many
@pytest.mark.parametrize("name", READERS)
def test_any_configuration_is_read_or_refused_in_one_line(name: str, examples: int) -> None:
    text, read = READERS[name]
    hunt(bytes_of(text.encode()), lambda data: refused_or_read(read, data), examples)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", ["a = " + "[" * DEEP, "a = " + "9" * 5000, "a = " + "{a=" * DEEP, "tool = 3", "tool.abprof = 3"],
                         ids=["lists", "digits", "tables", "tool", "abprof"])  # fmt: skip
def test_what_no_parser_expects_is_one_line(name: str, text: str) -> None:
    refused_or_read(READERS[name][1], text.encode())
