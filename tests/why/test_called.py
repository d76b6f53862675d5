"""On a CPU a function is to blame where something shows that it runs: another function's call, or perf's samples."""

import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abprof.evidence.causes import cpu as rules
from abprof.records import Comparison, Kernel, Outcome, Sampled, SampledFunction
from tests import blocks
from tests.planted import cpu, marked
from tests.why.cases import row_of
from tests.why.test_host import BASE, PASS, PLAIN, judged, read

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump"), reason="reads x86-64 by objdump"
)
UNUSED = (cpu.UNUSED, "-O3")
RESCALE = "rescale(float*, long)"


def looked(arm: str, functions: Mapping[str, int], *, file: str = "k.so", samples: int = 1000, **more: Any) -> Sampled:
    """A thousand calls, each sample a microsecond of a call."""
    found = tuple(SampledFunction(name=name, object=file, samples=n, own=True) for name, n in functions.items())
    return Sampled(cell=blocks.cells(1)[0].id, arm=arm, calls=1000, hz=1000, samples=samples, functions=found, **more)


def under_perf(found: tuple[Kernel, ...], pct: float, *sampled: Sampled) -> Comparison:
    """The row with perf's samples of both sides."""
    status = {arm: Outcome(status="ok", census=PLAIN) for arm in ("base", "target")}
    return row_of(blocks.head(kernels=found, sampled=sampled), pct, status)


def test_a_function_that_nothing_calls_is_not_to_blame(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, UNUSED)
    assert [one.name for one in found[1].functions] == ["unused_debug"]
    assert judged(found, 240.0).causes == ()
    assert judged(tuple(reversed(found)), -40.0).causes == ()


def test_calls_through_further_functions_are_followed(tmp_path: Path) -> None:
    between = cpu.AGAIN + "__attribute__((noinline)) void between(float *z, long n) { rescale(z, n); rescale(z, n); }\n"
    source = between + cpu.SOURCE.replace("z[i] = a;\n  }\n", "z[i] = a;\n  }\n  between(z, n);\n")
    [cause] = judged(read(tmp_path, BASE, (source, "-O3")), 40.0).causes or ()
    assert (cause.kind, cause.kernels) == ("pass", (RESCALE,))
    assert cause.note == rules.UNRECORDED


def test_what_perf_saw_is_said_and_needs_no_hedge(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, PASS)
    before, after = looked("base", {"blend": 900}), looked("target", {"blend": 900, "rescale": 400}, samples=1400)
    [cause] = under_perf(found, 40.0, before, after).causes or ()
    assert cause.text.endswith("; perf: 400 of 1400 samples, 400 µs a call more)")
    assert (cause.kernels, cause.evidence) == ((RESCALE,), ("kernels", "perf"))
    back = [msgspec.structs.replace(one, side=side) for one, side in zip(found, ("target", "base"), strict=True)]
    turned = (msgspec.structs.replace(after, arm="base"), msgspec.structs.replace(before, arm="target"))
    [cause] = under_perf(tuple(back), -30.0, *turned).causes or ()
    assert cause.text.endswith("; perf: 400 of 1400 samples, 400 µs a call less)")


def test_the_time_of_a_call_that_a_function_now_makes_is_the_functions(tmp_path: Path) -> None:
    (before, flags), (after, _) = [(marked.files(changes)["kernels/lined_cpu/parts.cpp"], "-O3 -march=x86-64-v3")
                                   for changes in (None, ["exact_exp"])]  # fmt: skip
    found = read(tmp_path, (before, flags), (after, flags))
    library = SampledFunction(name="__expf_fma", object="libm.so.6", samples=900)
    seen = looked("target", {"squash": 200}, samples=1100)
    seen = msgspec.structs.replace(seen, functions=(*seen.functions, library))
    [cause] = under_perf(found, 90.0, looked("base", {"squash": 100}), seen).causes or ()
    assert cause.kernels == ("squash",)
    assert cause.text.endswith("; perf: 1100 of 1100 samples, 1 ms a call more)")


def test_a_function_that_python_calls_is_named_where_perf_saw_it(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, UNUSED)
    seen = looked("target", {"blend": 900, "unused_debug": 400})
    [cause] = under_perf(found, 40.0, looked("base", {"blend": 900}), seen).causes or ()
    assert cause.kernels == ("unused_debug",)


@pytest.mark.parametrize("functions", [{"blend": 900}, {"blend": 900, "rescale": 20}, {}])
def test_what_perf_did_not_see_or_hardly_is_not_to_blame(tmp_path: Path, functions: dict[str, int]) -> None:
    found = read(tmp_path, BASE, PASS)
    assert under_perf(found, 40.0, looked("base", {"blend": 900}), looked("target", functions)).causes == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("blend", "blend"),
        ("rescale(float*, long)", "rescale"),
        ("rescale(float*, long) [clone ._omp_fn.0]", "rescale"),
        ("void (anonymous namespace)::scale<float>(float*, long)", "(anonymous namespace)::scale<float>"),
        ("std::pair<int, long> f<int (*)(long)>(std::vector<int, int>&) const", "f<int (*)(long)>"),
    ],
)
def test_names_as_perf_says_them(name: str, said: str) -> None:
    assert rules.bare(name) == said
