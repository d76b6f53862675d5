"""A real worker's answers: contracts of workloads, arms of a cell, fresh inputs."""

from collections.abc import Iterator
from typing import Any

import pytest

from abprof.records import messages as wire
from abprof.system.processes import WorkerFault
from tests.workloads.worker import Side, written

PACKAGE = """
import torch
VARIANTS = ("plain", "other")
import time
from pathlib import Path
def double(x): return x * 2
class Answers(Exception):
    def __getattr__(self, name): return None
def forge(judging):
    error = Answers("of the kernel") if judging is None else ValueError("of the kernel")
    error.abprof_judging = judging
    raise error
def count(what):
    with (Path(__file__).parents[2] / f"called-{what}").open("a") as file:
        file.write(".")
def sleep(x, seconds):
    count(seconds)
    time.sleep(seconds)
    return x * 2
"""
GOOD = '''
"""Doubling.

More words."""
from pathlib import Path
from types import SimpleNamespace
import torch
from abprof.kit import Band, Check, Op, Sweep, Unsupported, Work, compare

API = 1
KERNEL = "tiny"
JUDGE = "wall"
PRESETS = {
    "default": {"n": [4, 8], ("a", "b"): [(1, True), (2, False)]},
    "requested": lambda kind: {"n": [1 if kind == "cpu" else 2]},
}
PHASES = {"run": ("tiny.run", "the kernel")}
PEERS = {"torch": lambda case, x: Op(lambda: x + x)}
DEFAULT_PEERS = ()
SEED_COLUMNS = ("n",)
VARIANTS = LADDER = ("plain", "other")
SCALED = "n"
SWEEP = Sweep(axes=("a", "b"), bands=(Band((0, 0.5), (1.5, 2)),), against="plain")

def skip(case, device):
    return f"odd on {device.type}" if case["n"] % 2 else None

def inputs(case, device, seed):
    if case.get("how") == "inputs":
        1 / 0
    if case.get("how") == "unsupported":
        raise Unsupported("not here")
    x = torch.randn(case["n"], device=device)  # torch's own generator: seeded by the worker
    with Path(__file__).with_name("made").open("a") as file:
        file.write(".")
    return x

def prepare(kernel, variant, case, x):
    if case.get("how") == "sleep":
        return Op(lambda: kernel.sleep(x, case["seconds"]))
    if case.get("how") == "absent":
        kernel.no_such_function
    if case.get("how") == "answers":
        return Op(lambda: kernel.forge(None))
    if case.get("how") == "forged":
        return Op(lambda: kernel.forge((SimpleNamespace(__file__="<" + "x" * 3000 + ">"), "inputs")))
    if case.get("how") == "plain":
        return lambda: kernel.double(x)
    if case.get("how") == "write":
        case["n"] = 3
    result = {"autotuned": f"of {variant}", "sum": case.get("sum", 0)}
    return Op(lambda: kernel.double(x) if variant != "other" else x + x + 1, facts=lambda: result)

def facts(case, x):
    return {"density": [0.5] if case.get("how") == "list" else 0.5, "sum": 1}

def reference(case, x):
    if case.get("how") == "reference":
        raise KeyError("no such case")
    return x.double() * 2

def check(case, outputs, expected):
    if case.get("how") == "check":
        outputs.no_such_output
    if case.get("how") == "bool":
        return True
    return compare(outputs, expected, rtol=1e-6, atol=1e-6)

def work(case):
    return Work(flops=2.0 * case["n"], bytes=8.0 * case["n"], convention="doubling")
'''
OTHERS = {
    "bare": "API = 1\nKERNEL = 'tiny'\nPRESETS = {'default': {'n': [1]}}\n",
    "zip": "API = 1\nKERNEL = 'tiny'\nPRESETS = {'default': {('a', 'b'): [(1, 2), (3,)]}}\n",
    "nameless": "API = 1\nPRESETS = {}\n",
    "future": "API = 2\n",
    "scaled": "API = 1\nKERNEL = 'tiny'\nSCALED = 'm'\nPRESETS = {'default': {'n': [1]}}\n",
    "ladder": "API = 1\nKERNEL = 'tiny'\nLADDER = ('a', 'a')\nPRESETS = {'default': {'n': [1]}}\n",
    "rung": "API = 1\nKERNEL = 'tiny'\nVARIANTS = ('a',)\nLADDER = ('a', 'b')\nPRESETS = {'default': {'n': [1]}}\n",
    "peer": "API = 1\nKERNEL = 'tiny'\nDEFAULT_PEERS = ('a',)\nPRESETS = {'default': {'n': [1]}}\n",
    "band": "from abprof.kit import Band, Sweep\nAPI = 1\nKERNEL = 'tiny'\nPRESETS = {'default': {'n': [1]}}\n"
    "SWEEP = Sweep(axes=['n'], bands=[Band((0, 2), (1, 2))])\n",
}
FOUR = {"n": 4, "a": 1, "b": True}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with written(tmp_path_factory.mktemp("bench"), PACKAGE, good=GOOD, **OTHERS) as made:
        yield made


def refused(worker: Side, request: Any) -> tuple[str, str]:
    """(status, reason) of a request that must fail; the worker lives on."""
    with pytest.raises(WorkerFault) as fault:
        worker.ask(request)
    return fault.value.status, fault.value.reason


def opened(worker: Side, arm: str = "base", **more: Any) -> wire.Opened:
    fields = {"workload": "good", "case": {**FOUR, **more.pop("case", {})}, "arm": arm, "seed": 3, **more}
    answer: wire.Opened = worker.ask(wire.Open(**fields))
    return answer


def test_a_workload_describes_itself(worker: Side) -> None:
    result = worker.ask(wire.Describe("good"))
    assert (result.kernel, result.suite, result.text, result.declared_judge) == ("tiny", "good", "Doubling.", "wall")
    assert result.presets == {
        "default": [(["n"], [[4], [8]]), (["a", "b"], [[1, True], [2, False]])],
        "requested": [(["n"], [[1]])],
    }
    phases = (wire.Phase("run", "tiny.run", "the kernel"),)
    assert (result.phases, result.peers, result.seed_columns) == (phases, ("torch",), ("n",))
    assert (result.scaled, result.ladder) == ("n", ("plain", "other"))
    assert result.sweep == wire.Sweep(("a", "b"), (wire.Band((0.0, 0.5), (1.5, 2.0)),), against="plain")
    bare = worker.ask(wire.Describe("bare"))
    assert (bare.scaled, bare.ladder, bare.sweep) == ("", (), None)
    assert (result.default_peers, bare.default_peers) == ([], None)
    assert (bare.suite, bare.text, bare.declared_judge, bare.phases, bare.peers) == ("bare", "", "", (), ())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zip", "ValueError: PRESETS: an entry of ['a', 'b'] needs 2 values, but one is [3]"),
        ("future", "ValueError: API is 2; this abprof reads API = 1"),
        ("scaled", "ValueError: SCALED: no preset has an axis 'm'"),
        ("ladder", "ValueError: LADDER: ['a', 'a'] must list two or more different variants"),
        ("rung", "ValueError: LADDER: 'b' is not in VARIANTS"),
        ("peer", "ValueError: DEFAULT_PEERS: 'a' is not in PEERS"),
        ("band", "ValueError: SWEEP: invalid band: density 0.0 to 2.0 (within 0 to 1), speed-up 1.0 to 2.0 (above 0)"),
        ("nameless", "AttributeError: module 'abprof_workloads.nameless' has no attribute 'KERNEL'"),
    ],
)
def test_a_broken_contract_is_named(worker: Side, name: str, reason: str) -> None:
    assert refused(worker, wire.Describe(name)) == ("crash", reason)


def test_cases_are_screened(worker: Side) -> None:
    seen = worker.ask(wire.Screen("good", [{"n": 4}, {"n": 5}]))
    assert seen.skips == ["", "odd on cpu"]
    assert (seen.flops, seen.bytes, seen.conventions) == ([8.0, 10.0], [32.0, 40.0], ["doubling"] * 2)
    bare = worker.ask(wire.Screen("bare", [{"n": 1}]))
    assert (bare.skips, bare.flops, bare.conventions) == ([""], [None], [""])


def test_facts_come_with_the_check(worker: Side) -> None:
    opened(worker, "base:other", variant="other", case={"sum": 2})
    checked = worker.check("base:other")
    assert not checked.ok
    assert checked.facts == {"density": 0.5, "sum": 2, "autotuned": "of other"}
    worker.ask(wire.Close())
    opened(worker, case={"how": "list"})
    requested = wire.Check("base", "listed.expected", "listed.sample")
    message = "ValueError: facts: density is [0.5], and must be a str, an int, a finite float or a bool"
    assert refused(worker, requested) == ("crash", message)
    worker.ask(wire.Close())


def test_an_arm_is_opened_checked_timed_and_closed(worker: Side) -> None:
    result = opened(worker)
    assert result.call_ns > 0
    assert result.open_ns > 0
    assert worker.check("base", "plain").ok
    turned = worker.ask(wire.Turn("base", 5, "cpu_clock"))
    assert 0 < turned.value == turned.wall
    assert turned.end - turned.start >= 5 * turned.value
    worker.ask(wire.Close())
    assert refused(worker, wire.Turn("base", 1, "cpu_clock"))[0] == "crash"


def test_sides_variants_and_peers_share_inputs(worker: Side) -> None:
    """Same seed, same bytes on every arm: one reference for all, and a wrong output has its error."""
    for arm, more in {"base": {"variant": "plain"}, "peer:torch": {"peer": "torch"}}.items():
        assert opened(worker, arm, **more).call_ns > 0
        assert worker.check(arm, "shared").ok
    opened(worker, "base:other", variant="other")
    wrong = worker.check("base:other", "shared")
    assert not wrong.ok
    assert wrong.max_abs == pytest.approx(1.0, abs=1e-5)
    assert worker.check("base", "shared").digest == worker.check("peer:torch", "shared").digest
    worker.ask(wire.Close())


def test_what_the_package_lacks_is_missing_and_the_case_is_read_only(worker: Side) -> None:
    assert refused(worker, wire.Open("good", {**FOUR, "how": "absent"}, "base"))[0] == "missing"
    assert refused(worker, wire.Open("good", FOUR, "base", variant="newest")) == (
        "missing",
        "MissingPackage: this side has no variant newest",
    )
    status, reason = refused(worker, wire.Open("good", {**FOUR, "how": "write"}, "base"))
    assert (status, "mappingproxy" in reason) == ("crash", True)
    assert refused(worker, wire.Open("good", {**FOUR, "how": "plain"}, "base")) == (
        "crash",
        "TypeError: prepare returned function, not Op of abprof.kit: return Op(call)",
    )
    assert opened(worker).call_ns > 0
    worker.ask(wire.Close())


def checked(worker: Side, how: str) -> None:
    opened(worker, case={"how": how})
    worker.ask(wire.Check("base", f"{how}.expected", f"{how}.sample"))


@pytest.mark.parametrize(
    ("how", "line", "message"),
    [
        ("inputs", "1 / 0", "inputs() of good.py, line {}"),
        ("reference", 'raise KeyError("no such case")', "reference() of good.py, line {}"),
        ("check", "outputs.no_such_output", "check() of good.py, line {}"),
        ("bool", "", "check() of good.py"),
        ("absent", "", ""),  # the kernel's doing, or who knows whose
        ("write", "", ""),
        ("unsupported", "", ""),
    ],
)
def test_the_workloads_own_exceptions_name_its_function(worker: Side, how: str, line: str, message: str) -> None:
    lines = GOOD.splitlines()
    place = message.format(next((number for number, text in enumerate(lines, 1) if line and text.strip() == line), 0))
    with pytest.raises(WorkerFault) as fault:
        checked(worker, how)
    assert fault.value.at == place
    assert fault.value.reason.endswith(f" ({place})" if place else fault.value.reason)
    assert opened(worker).call_ns > 0, "it lives on"
    worker.ask(wire.Close())


@pytest.mark.parametrize(
    ("how", "line"), [("answers", "Answers: of the kernel"), ("forged", "ValueError: of the kernel")]
)
def test_a_kernel_cannot_blame_the_workload(worker: Side, how: str, line: str) -> None:
    """For an exception with any attributes the worker reports a reason and continues."""
    with pytest.raises(WorkerFault) as fault:
        opened(worker, case={"how": how})
    assert (fault.value.status, fault.value.reason, fault.value.at) == ("crash", line, "")
    assert opened(worker).call_ns > 0
    worker.ask(wire.Close())


def test_a_new_placement_re_makes_the_inputs_with_the_same_values(worker: Side) -> None:
    opened(worker, placement=1)
    first = worker.check("base", "placed").digest
    made = times(worker, "made")
    for placement in (2, 3, 4):
        worker.ask(wire.Turn("base", 1, "cpu_clock", placement=placement))
        worker.ask(wire.Turn("base", 1, "cpu_clock"))
    assert times(worker, "made") == made + 3, "a turn without a placement keeps them"
    assert worker.check("base", "placed").digest == first
    worker.ask(wire.Close())


@pytest.mark.parametrize(
    ("seconds", "usual_ns", "opening", "checked"), [(0.07, 0.0, 2, 3), (0.08, 8e9, 1, 2), (0.001, 0.0, 5, 7)]
)
def test_a_long_call_is_made_no_more_often_than_needed(
    worker: Side, seconds: float, usual_ns: float, opening: int, checked: int
) -> None:
    """Once to compile and once to be timed, which an earlier epoch may have done; short ones a few times more, and once
    more after the check."""
    result = opened(worker, case={"how": "sleep", "seconds": seconds}, usual_ns=usual_ns)
    assert result.call_ns >= seconds * 1e9
    assert times(worker, f"called-{seconds}") == opening
    assert worker.check("base", "slept").ok
    assert times(worker, f"called-{seconds}") == checked
    worker.ask(wire.Close())


def times(worker: Side, what: str) -> int:
    """How often the workload has made inputs (`made`) or the package was called (`called-SECONDS`): a byte each."""
    return (worker.worker.log.path.parents[1] / what).stat().st_size
