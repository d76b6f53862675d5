"""Make the Python environments of sides: for `REF with REQUIREMENTS` uv installs packages into a folder of the cache.

Such an environment is a venv over the side's interpreter: what is not installed into it is imported from the
interpreter's own environment, which does not change. uv runs with the user's settings (UV_DEFAULT_INDEX, UV_FIND_LINKS,
uv.toml), and prefers the versions that the interpreter has. Only wheels are installed. An environment is in
CACHE/environments/HASH; HASH is the hash of the interpreter's path and import path, and of the resolved packages with their files' hashes.
A process locks HASH.lock while it makes the environment, and holds HASH.use (with a shared lock) while it uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from abprof.records import Side, split_spec
from abprof.records.errors import AbprofError
from abprof.records.quantities import plural
from abprof.system import locks
from abprof.system import processes as proc
from abprof.system.trees import remove_tree

_COMMA = re.compile(r",\s*(?=[A-Za-z0-9])(?![^\[]*\])")  # between requirements: not in `>=1,<2`, nor in `[a,b]`
_MADE = "requirements.txt"  # file of a complete environment: its packages, with hashes
_CAUSE = re.compile(r"(?:cause:|Caused by:|╰─▶) (.*)")
_FOLDERS = r"import sys; [print(f'import site; site.addsitedir({p!r})') for p in sys.path if p.endswith('-packages')]"


def split(spec: str) -> tuple[str, tuple[str, ...]]:
    """Return the ref or release of `spec`, and its requirements: `.`, ("torch==2.12",) of `. with torch==2.12`. Raises
    AbprofError if a requirement is not one by PEP 508."""
    ref, packages = split_spec(spec)
    try:
        return ref, tuple(str(Requirement(text)) for text in _COMMA.split(packages.strip()) if packages)
    except InvalidRequirement as error:
        what = " ".join(str(error).split("\n")[0].split())
        raise AbprofError(f"not requirements: {what}", where=spec, advice="write --with NAME==VERSION") from None


def install(
    sides: Sequence[Side], python: Callable[[str], str], cache: Path, timeout: float, say: Callable[[str], None]
) -> tuple[tuple[Side, ...], dict[str, str]]:
    """Make the environments of `sides` that are missing. Return the sides with the resolved packages as requirements,
    and {side id: interpreter of its environment}.

    `python` returns the interpreter's path for a side id. `timeout` is in seconds. Raises AbprofError if uv fails.
    """
    made: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, ...], str]] = {}
    for side in sides:
        key = python(side.id), side.requirements
        if side.requirements and key not in made:
            made[key] = _Uv(key[0], side.spec, timeout).environment(side.requirements, cache / "environments", say)
    found = {side.id: made[python(side.id), side.requirements] for side in sides if side.requirements}
    replace = msgspec.structs.replace
    pinned = (replace(side, requirements=found[side.id][0]) if side.id in found else side for side in sides)
    return tuple(pinned), {id: interpreter for id, (_, interpreter) in found.items()}


def sweep(cache: Path, *, everything: bool) -> Iterator[str]:
    """Remove incomplete environments; with `everything` also all that no process uses. Yield a line for each removal."""
    for folder in locks.idle(cache / "environments"):
        if (everything or not (folder / _MADE).exists()) and remove_tree(folder):
            yield f"removed the environment {folder.name}"


class _Uv:
    def __init__(self, python: str, spec: str, timeout: float) -> None:
        self._python, self._spec, self._timeout = python, spec, timeout
        try:
            import uv

            self._program = uv.find_uv_bin()
        except (ImportError, FileNotFoundError):
            self._program = shutil.which("uv") or ""
        if not self._program:
            raise AbprofError("uv is not installed", where=spec, advice="pip install 'abprof[uv]'")

    def environment(
        self, requirements: Sequence[str], home: Path, say: Callable[[str], None]
    ) -> tuple[tuple[str, ...], str]:
        """Return the packages that `requirements` resolve to, and the interpreter of the environment with them."""
        scratch = home / secrets.token_hex(6)
        with contextlib.ExitStack() as held:
            locks.hold(home / f"{scratch.name}.lock")  # `sweep` removes a folder whose lock no process holds
            held.callback(locks.drop, home / f"{scratch.name}.lock")
            held.callback(remove_tree, scratch)
            scratch.mkdir()
            locked = self._resolved(requirements, scratch)
            pins = tuple(line.removesuffix(" \\") for line in locked.splitlines() if line and line[0] not in " #")
            below = proc.output([self._python, "-I", "-c", _FOLDERS], timeout=60) or ""
            name = hashlib.sha256(f"{self._python}\0{below}\0{locked}".encode()).hexdigest()[:20]
            folder, interpreter = home / name, home / name / "bin" / "python"
            held.enter_context(locks.locked(home / f"{name}.lock"))
            locks.hold(home / f"{name}.use", shared=True)  # until this process ends
            if not (folder / _MADE).exists():
                say(f"installing {plural(len(pins), 'package')} into abprof's cache: {self._spec}")
                self._make(folder, interpreter, locked, below, scratch)
        return pins, str(interpreter)

    def _resolved(self, requirements: Sequence[str], scratch: Path) -> str:
        wanted, found = scratch / "wanted.in", scratch / "resolved.txt"
        wanted.write_text("\n".join(requirements))
        # uv prefers the versions in an existing output file.
        self._run("pip", "freeze", "--python", self._python, out=found, cwd=scratch)
        options = ("--only-binary", ":all:", "--no-header", "--no-annotate", "--generate-hashes")
        self._run("pip", "compile", str(wanted), "-o", str(found), "--python", self._python, *options, cwd=scratch)
        return found.read_text()

    def _make(self, folder: Path, interpreter: Path, locked: str, below: str, scratch: Path) -> None:
        remove_tree(folder)  # left by a killed process
        try:
            self._run("venv", "--no-project", "--python", self._python, str(folder), cwd=scratch)
            file = folder / f"{_MADE}.partial"
            file.write_text(locked)
            # Compiled, since workers write no bytecode.
            options = ("--no-deps", "--only-binary", ":all:", "--compile-bytecode")
            self._run("pip", "install", *options, "--python", str(interpreter), "-r", str(file), cwd=scratch)
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "abprof_below.pth").write_text(below)
            file.rename(folder / _MADE)
        except BaseException:
            remove_tree(folder)
            raise

    def _run(self, *words: str, cwd: Path, out: Path | None = None) -> None:
        """Run uv in the folder `cwd`, so that it reads no settings of a project. Raises AbprofError with uv's reason."""
        settings = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "UV_NO_WRAP": "1", "NO_COLOR": "1"}
        env = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
        log = cwd / "log"
        log.unlink(missing_ok=True)
        try:
            with contextlib.ExitStack() as files:
                more = {"out": files.enter_context(out.open("wb"))} if out else {}
                argv = [self._program, *words, "--quiet"]
                code = proc.logged(argv, env=env | settings, cwd=cwd, log=log, timeout=self._timeout, **more)
        except proc.WorkerDied as died:
            raise AbprofError(died.reason, where="uv") from died
        if code:
            text = re.sub(r"://[^/@\s]+@", "://", log.read_text(errors="replace"))
            first = next(filter(None, map(str.strip, text.splitlines())), "uv failed without a message")
            why = ": ".join([first.removeprefix("error: ").removeprefix("× "), *_CAUSE.findall(text)[:1]]).rstrip(".")
            raise AbprofError(why, where=self._spec, advice="UV_DEFAULT_INDEX and UV_FIND_LINKS set where uv searches")
