"""Recordings of other programs: CSV files of older scripts and of ncu, perf's lines, profilers' traces and trees."""

import json
from pathlib import Path

import pytest

from abprof.evidence import probes
from abprof.records.errors import AbprofError
from tests.fuzz.commands import Asker
from tests.fuzz.mutations import bytes_of, few, hunt, many, texts_of
from tests.ncu import recorded

PROFILE = b"""seqlen_q,seqlen_k,mask_type,direction,latency_ms,tflops_per_sec,fwd_main_ms
1024,1024,full,fwd,0.1234,12.5,0.1000
1024,1024,causal,bwd,0.2234,11.5,-1.0000
2048,2048,full,fwd,0.4234,13.5,0.4000
"""
NCU = [recorded.details([recorded.moves("attn", 3e6)] * 4), recorded.RAW.read_text() if recorded.RAW.exists() else ""]
CHROME = {
    "traceEvents": [{"name": "k", "ph": "X", "ts": 0, "dur": 1.5, "args": {"grid": [1, 2, 3]}}],
    "schemaVersion": 1,
}


RECORDINGS = sorted((Path(__file__).parents[1] / "data" / "recordings").iterdir())


@few
@pytest.mark.parametrize("recorded", [PROFILE, *(file.read_bytes() for file in RECORDINGS)], ids=range(5))
def test_any_two_recordings_are_compared_or_refused(asker: Asker, recorded: bytes, examples: int) -> None:
    right = asker.folder / "a.csv"
    right.write_bytes(recorded)

    def ask(data: bytes) -> None:
        other = asker.folder / "b.csv"
        other.write_bytes(data)
        asker("compare", right, other, asker.folder / "out.csv")
        asker("compare", other, right, asker.folder / "out.csv")

    ask(recorded)
    hunt(bytes_of(recorded), ask, examples)


@few
@pytest.mark.parametrize("page", [0, 1])
def test_any_recording_of_ncu_is_read_or_refused(asker: Asker, page: int, examples: int) -> None:
    text = NCU[page]
    if not text:
        pytest.skip("no recording of this kind lies in tests/data/ncu")

    def ask(data: bytes) -> None:
        file = asker.folder / "ncu.csv"
        file.write_bytes(data)
        asker("memory", "--from", file, "--warmup", "1", "--runs", "1")

    hunt(bytes_of(text.encode()), ask, examples)


@many
def test_any_trace_is_stored_or_reported(tmp_path: Path, examples: int) -> None:
    """The errors are those that become the trace's `missing` (abprof/evidence/probes.py)."""
    made, target = tmp_path / "made", tmp_path / "kept"

    def ask(data: bytes) -> None:
        made.write_bytes(data)
        try:
            size = probes._keep(made, tmp_path, target)
        except (OSError, ValueError, AbprofError):
            return
        assert size == len(data) == target.stat().st_size
        json.loads(data)

    hunt(texts_of(CHROME), ask, examples)
