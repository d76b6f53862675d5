"""What an exception in a worker means: unsupported, missing, oom or crash, in one line."""

from __future__ import annotations

import traceback
from types import ModuleType

import pytest
import torch

from abprof.worker.api import Unsupported
from abprof.worker.faults import MissingPackage, begun_outside, classify, judging

PACKAGE = ModuleType("abprof_side.tiny")
PART = ModuleType("abprof_side.tiny.part")
OTHER = ModuleType("abprof_side.tiny_two")


def caught(code: str) -> BaseException:
    """What this line of Python raises."""
    names = {"PACKAGE": PACKAGE, "PART": PART, "OTHER": OTHER, "torch": torch, "Unsupported": Unsupported}
    try:
        exec(code, names)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("code", "status", "line"),
    [
        ("raise Unsupported('needs sm_90')", "unsupported", "needs sm_90"),
        ("raise Unsupported", "unsupported", "unsupported"),
        ("bytearray(1 << 60)", "oom", "MemoryError"),
        ("torch.empty(1 << 60, dtype=torch.uint8)", "oom", "RuntimeError: "),
        ("raise torch.OutOfMemoryError('CUDA out of memory')", "oom", "OutOfMemoryError: CUDA out of memory"),
        ("PACKAGE.no_such_kernel", "missing", "AttributeError: module 'abprof_side.tiny' has no attribute 'no_such_kernel'"),
        ("PART.no_such_kernel", "missing", "AttributeError: "),
        ("OTHER.anything", "crash", "AttributeError: "),
        ("torch.no_such_function", "crash", "AttributeError: "),
        ("{}.no_such_method", "crash", "AttributeError: "),
        ("raise ImportError('no', name='abprof_side.tiny.gone')", "missing", "ImportError: no"),
        ("import no_such_dependency", "crash", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("1 / 0", "crash", "ZeroDivisionError: division by zero"),
        ("raise ValueError", "crash", "ValueError"),
        ("raise ValueError('two\\n  lines')", "crash", "ValueError: two lines"),
        ("raise SystemExit(3)", "crash", "called exit(3)"),
        ("raise SystemExit", "crash", "called exit(None)"),
        ("raise KeyboardInterrupt", "crash", "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_every_kind(code: str, status: str, line: str) -> None:
    fault = classify(caught(code), PACKAGE)
    assert fault.status == status
    assert fault.reason.startswith(line)
    assert "\n" not in fault.reason


def test_a_traceback_begins_in_the_code_under_test() -> None:
    """What of it is our own leads nobody to the mistake; but where all of it is ours, all of it stands."""

    def said(error: BaseException) -> str:
        return "".join(traceback.format_exception(begun_outside(error)))

    names: dict[str, object] = {}
    exec(compile("def double(x):\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n"
                 "        raise ValueError('not today') from e\n", "kernels/tiny/__init__.py", "exec"), names)  # fmt: skip
    foreign = ModuleType("ours")
    exec(compile("def call(op):\n    op(1)\n", classify.__code__.co_filename, "exec"), foreign.__dict__)
    with pytest.raises(ValueError, match="not today") as caught:
        foreign.call(names["double"])
    caught.value.__traceback__ = caught.tb.tb_next  # without this test's own
    text = said(caught.value)
    assert text.count('File "kernels/tiny/__init__.py"') == 2
    assert "ZeroDivisionError" in text
    assert classify.__code__.co_filename not in text
    with pytest.raises(TypeError) as caught:
        foreign.call(3)
    caught.value.__traceback__ = caught.tb.tb_next
    assert classify.__code__.co_filename in said(caught.value)


def test_before_a_package_is_named_only_its_absence_is_missing() -> None:
    assert classify(MissingPackage("tiny does not exist on this side"), None).status == "missing"
    assert classify(caught("PACKAGE.no_such_kernel"), None).status == "crash"


def test_a_long_reason_keeps_its_beginning_and_its_end() -> None:
    reason = classify(RuntimeError("place " + "x" * 5000 + " cause"), PACKAGE).reason
    assert reason.startswith("RuntimeError: place ")
    assert reason.endswith(" cause")
    assert len(reason) < 500


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Sealed(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("sealed")


class Nameless(ImportError):
    name = 3


@pytest.mark.parametrize(
    "error",
    [
        Nameless("x"),
        type("N" * 5000, (Exception,), {})("x"),
        Mute(),
        Sealed("x"),
        SystemExit(Mute()),
        Unsupported("a\nb\x1b" + "c" * 5000),
    ],
)
def test_whatever_is_raised_has_a_short_printable_line(error: BaseException) -> None:
    fault = classify(error, PACKAGE)
    assert fault.reason
    assert fault.reason.isprintable()
    assert len(fault.reason) < 500


@pytest.mark.parametrize("file", ["/w/good.py", "/w/" + "x\n\x1b" * 2000, None, 3])
def test_whose_an_exception_is_stands_outside_of_it_and_is_told_once(file: object) -> None:
    """A block tells only of the very exception that left it last, in a short line whatever the module says of its file."""
    module = ModuleType("good")
    module.__dict__["__file__"] = file
    error = ValueError("x" * 5000)
    with pytest.raises(ValueError, match="x"), judging(module, "inputs"):
        raise error
    assert not vars(error)
    fault = classify(error, PACKAGE)
    assert fault.at.startswith("inputs() of ")
    assert fault.at.isprintable()
    assert fault.reason.endswith(f" ({fault.at})")
    assert len(fault.at) < 200
    assert len(fault.reason) < 700
    assert classify(error, PACKAGE).at == ""
    with pytest.raises(ValueError, match="x"), judging(module, "inputs"):
        raise error
    assert classify(ValueError("another"), PACKAGE).at == ""
    with pytest.raises(ValueError, match="x"), judging(module, "inputs"):
        raise error
    with judging(module, "check"):
        pass
    assert classify(error, PACKAGE).at == ""
