"""What an exception in a worker means: unsupported, missing, oom or crash, in one line."""

from __future__ import annotations

import traceback
from types import ModuleType

import pytest
import torch

from abprof.kit import Unsupported
from abprof.worker.faults import MissingPackage, begun_outside, classify

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
