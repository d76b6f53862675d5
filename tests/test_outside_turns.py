"""--untrusted: a package that works outside its turns is broken, by whatever thread or process it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_out_of_process_check import target_outcome
from tests.tinyrepo import PACKAGE, abprof_afresh, tiny_repo

# The kernel's work is done by somebody else, later: long before anybody looks at the outputs of a turn's last call.
THREAD = """
import threading, time
_honest = double
def double(x):
    out = torch.empty_like(x)
    threading.Thread(target=lambda: (time.sleep(0.002), out.copy_(_honest(x)))).start()
    return out
"""
BURNS = {
    "a thread": "import threading\nthreading.Thread(target={}, daemon=True).start()\n",
    "a child process": "import os\nif os.fork() == 0:\n    {}()\n",
    "a child of its own session": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        {}()\n    os._exit(0)\n",
}
LOOP = "\ndef _burn():\n    while True:\n        sum(range(10000))\n_honest, _begun = double, []\n"
FIRST_CALL = "def double(x):\n    if not _begun:\n        _begun.append(1)\n{}\n    return _honest(x)\n"


def outcome(tmp_path: Path, more: str) -> tuple[str, str]:
    repo = tiny_repo(tmp_path / "repo", 100)
    repo.branch("other")
    repo.commit("honest or not", {"kernels/tiny/__init__.py": PACKAGE + more})
    options = ("--untrusted", "--device", "cpu", "--no-peers", "--quick", "--json")
    return target_outcome(abprof_afresh("main", "other", *options, cwd=repo.path, home=tmp_path / "home"))


def test_an_honest_package_is_fine(tmp_path: Path) -> None:
    assert outcome(tmp_path, "# honest\n") == ("ok", "")


@pytest.mark.slow
@pytest.mark.parametrize("how", BURNS)
def test_a_package_that_burns_while_base_has_its_turn(tmp_path: Path, how: str) -> None:
    body = "".join(f"        {line}\n" for line in BURNS[how].format("_burn").splitlines())
    status, reason = outcome(tmp_path, LOOP + FIRST_CALL.format(body))
    assert status == "outside_turn", reason
    assert reason.startswith("CPU time outside its turns: ")


@pytest.mark.slow
def test_work_that_a_thread_does_after_the_turn(tmp_path: Path) -> None:
    assert outcome(tmp_path, THREAD)[0] in {"outside_turn", "wrong"}
