"""Modules that abprof's processes load. `make lint` checks imports between packages (import-linter, pyproject.toml)."""

from __future__ import annotations

import subprocess
import sys


def test_the_parent_holds_no_torch() -> None:
    code = "import sys, abprof.cli, abprof.session, abprof.report; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_loads_nothing_that_a_verb_would_need() -> None:
    late = "{'torch', 'github', 'requests', 'jinja2', 'pandas', 'numpy', 'git', 'scipy'}"
    code = "import sys; from abprof.cli import run_command_line as run; run(['--help']); "
    code += f"sys.exit(str({late} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
