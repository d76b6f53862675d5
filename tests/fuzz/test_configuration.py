"""Any content of abprof.toml, pyproject.toml and waivers is read correctly or refused in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abprof.records.errors import AbprofError
from abprof.system import config_file as abprof_toml
from abprof.system import waiver_file
from tests.fuzz.commands import one_clear_line
from tests.fuzz.mutations import DEEP, bytes_of, hunt, many

ROOT = Path(__file__).parents[2]
TOML, WAIVERS = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "CONFIG.md").read_text(), re.DOTALL)
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
    read(text)
    hunt(bytes_of(text.encode()), lambda data: refused_or_read(read, data), examples)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", ["a = " + "[" * DEEP, "a = " + "9" * 5000, "a = " + "{a=" * DEEP, "tool = 3", "tool.abprof = 3"],
                         ids=["lists", "digits", "tables", "tool", "abprof"])  # fmt: skip
def test_what_no_parser_expects_is_one_line(name: str, text: str) -> None:
    refused_or_read(READERS[name][1], text.encode())
