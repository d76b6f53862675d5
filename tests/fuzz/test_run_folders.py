"""A run folder from another user: `abprof report` reads any content, or refuses it in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from abprof.records import Arm, Artefact, Block, Finding, Kernel, Machine, Placed, Proof, Run, Touched
from abprof.records.errors import AbprofError
from abprof.store import runfolder
from abprof.system import checksummed
from tests import declared, runs
from tests.fuzz import rich
from tests.fuzz.commands import Asker, one_clear_line
from tests.fuzz.mutations import DEEP, bytes_of, fewest, hunt, many, values_of

LOADED = Artefact(kind="module", name="a", path="/a", sha256="0")
EVIDENCE_RECORDS = [
    Finding(proof=Proof(epoch=9, side="base", kernel="ffa", ok=True, artefacts=(LOADED,))),
    Finding(kernel=Kernel(side="base", package="ffa", name="k", kind="triton", key="k0")),
    Finding(touched=Touched(path="/a", how="changed", moment="in epoch 2")),
    Finding(placed=Placed(device="GPU-1", machine=Machine(host="h", device="NVIDIA H200", kind="cuda", facts={"driver": "570"}))),
    Finding(arm=Arm(id="target:fast", side="target", variant="fast")),
]  # fmt: skip


def plain(record: msgspec.Struct) -> Any:
    return json.loads(checksummed.text(record))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = runs.write(tmp_path / "runs", runs.run())
    (made / "evidence.jsonl").write_bytes(b"".join(map(checksummed.line, EVIDENCE_RECORDS)))
    return made


def read(folder: Path) -> None:
    """The file is read correctly or refused; a read record can be written again."""
    try:
        run, blocks, notes = runfolder.read(folder)
    except AbprofError as error:
        one_clear_line(error)
        return
    assert isinstance(run, Run)
    assert all(isinstance(block, Block) for block in blocks)
    assert all("\n" not in note for note in notes)
    checksummed.text(run)


@many
@pytest.mark.parametrize("name", ["run.json", "rounds.jsonl", "evidence.jsonl"])
def test_any_bytes_are_read_or_refused(folder: Path, name: str, examples: int) -> None:
    whole = (folder / name).read_bytes()

    def ask(data: bytes) -> None:
        (folder / name).write_bytes(data)
        read(folder)

    hunt(bytes_of(whole), ask, examples)


@fewest
@pytest.mark.parametrize("name", ["run.json", "rounds.jsonl", "evidence.jsonl"])
def test_a_report_of_any_values_ends_well(folder: Path, asker: Asker, name: str, examples: int) -> None:
    """Lines of another program with valid checksums are judged, dropped or refused."""
    whole = (folder / name).read_bytes()

    def ask(document: Any) -> None:
        place = asker.folder / "one"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        if name == "run.json":
            (place / name).write_bytes(json.dumps(document).encode())
        else:
            (place / name).write_bytes(
                b"".join(checksummed.seal(json.dumps(one, separators=(",", ":")).encode()) for one in document)
            )
        asker("report", place)
        asker("report", place, "--format", "artifact")

    if name == "run.json":
        hunt(values_of(json.loads(whole)), ask, examples)
        return
    lines = [json.loads(line) for line in whole.splitlines()]
    for line in lines:
        del line["sum"]
    hunt(values_of(lines[:8]).filter(lambda document: all(isinstance(one, dict) for one in document)), ask, examples)


@pytest.mark.parametrize("name", ["run.json", "rounds.jsonl", "evidence.jsonl"])
@pytest.mark.parametrize("data", [b"[" * DEEP, b'{"schema":1,"a":' + b"[" * DEEP, b'{"schema":' + b"9" * 5000 + b"}", b"\0" * 100,
                                  b"\n" * 1000], ids=["lists", "inside", "digits", "zeros", "lines"])  # fmt: skip
def test_unexpected_content_is_an_error(folder: Path, asker: Asker, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data + b"\n")
    assert asker("report", folder) == (2 if name == "run.json" else 0)


MADE = {"plain": rich.plain, "spread": rich.spread, "scripts": declared.scripts}


@pytest.mark.parametrize("examples", [2, pytest.param(100, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", MADE)
def test_any_values_of_all_that_a_run_can_hold(tmp_path: Path, asker: Asker, kind: str, examples: int) -> None:
    """Causes, kernels, traces, counters, samples, several machines, files of older scripts; and all readers of a run."""
    folder = runs.write(tmp_path / "runs", MADE[kind]())
    document = json.loads((folder / "run.json").read_bytes())

    def ask(changed: Any) -> None:
        (folder / "run.json").write_bytes(json.dumps(changed).encode())
        asker("report", folder, "--format", "legacy")
        asker("report", folder, "--format", "junit")
        asker("scripts", folder, "--repo", tmp_path)
        asker("report", folder)

    hunt(values_of(document) | st.just(document), ask, examples)
