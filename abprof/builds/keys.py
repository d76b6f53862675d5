"""Compute build keys: hashes of the content, settings, toolchain and variables that a build depends on."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Container, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from abprof.builds import environment
from abprof.records import Package
from abprof.system.config_file import fill
from abprof.system.trees import files_of, tree_hash, walk

# Variables of shells, terminals, desktops, batch systems and service managers, abprof's options, and the leased device:
# no build reads these, and they change often. All other variables are part of the key: a needless build costs minutes,
# but a stale build gives wrong results.
_NOISE = re.compile(
    r"^(_|_CE_.*|_ModuleTable.*|PWD|OLDPWD|SHLVL|PS\d|PROMPT.*|HIST.*|LESS.*|LS_COLORS|PAGER|EDITOR|VISUAL|MAIL|"
    r"TERM.*|COLORTERM|LC_TERMINAL.*|COLUMNS|LINES|VTE_VERSION|(KONSOLE|KITTY|WEZTERM|ITERM|ALACRITTY|GHOSTTY|GNOME|VSCODE|WT)_.*|"
    r"TMUX.*|ZELLIJ.*|STY|WINDOW|WINDOWID|.*_SESSION(_ID|_KEY|_NAME)?|DIRENV_.*|SUDO_.*|JPY_.*|KRB5CCNAME|SSH_.*|GPG_.*|DBUS_.*|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|SESSION_MANAGER|DESKTOP_.*|"
    r"XDG_(SESSION|SEAT|VTNR|RUNTIME_DIR|CURRENT_DESKTOP|MENU_PREFIX|GREETER).*|HOSTNAME|TMPDIR|TMP|TEMP|"
    r"INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_.*|MEMORY_PRESSURE_.*|NOTIFY_SOCKET|(SLURM|SLURMD|PBS|LSB)_.*|"
    r"VIRTUAL_ENV_PROMPT|CONDA_(?!PREFIX$|BUILD).*|PYTEST_CURRENT_TEST|ABPROF_.*|CUDA_VISIBLE_DEVICES)$"
)


def inputs(tree: Path, package: Package) -> list[str]:
    """Return the files that a build of `package` depends on, as paths relative to `tree`, the side's root."""
    return [name for name in files_of(tree) if any(_matches(name, pattern) for pattern in package.patterns)]


def content(tree: Path, name: str) -> str:
    """Return a hash of the file `name` below `tree`; "" if it cannot be read."""
    try:
        return tree_hash(tree, [name])
    except OSError:
        return ""


FOLDERS = ("src", "out", "caches")  # of a build
IMPORTABLE = (".so", ".py", ".pyc", ".pth")  # suffixes of files that an import can load, or that change imports
COMPILED = (".pyc",)
CODE = (*IMPORTABLE, ".cubin", ".hsaco", ".ptx", ".json")  # suffixes of compiled code in caches, and of its index


def importable(tree: Path, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files below `tree` whose suffix is in `kinds`, sorted, as paths relative to `tree`."""
    found = [Path(folder) / name for folder, _, names in walk(tree) for name in names if name.endswith(kinds)]
    return tuple(sorted(str(path.relative_to(tree)) for path in found))


def _matches(name: str, pattern: str) -> bool:
    if pattern.endswith("/**"):
        return name.startswith(pattern[:-2])
    return pattern == "**" or fnmatch.fnmatchcase(name, pattern) or PurePosixPath(name).match(pattern)


def of_side(package: Package, side: str) -> Package:
    """Return `package` with {side} in its build command and variables replaced by the side's id. {worktree} and
    {build_dir} stay, because they depend on the build key. Raises AbprofError for other names in braces."""
    places = {"worktree": "{worktree}", "build_dir": "{build_dir}", "side": side}
    where = f"abprof.toml [kernels.{package.name}]"
    recipe = fill({f"build[{i}]": part for i, part in enumerate(package.build)}, where, **places)
    env = fill(package.env, f"{where[:-1]}.env]", **places)
    return msgspec.structs.replace(package, build=tuple(recipe.values()), env=env)


def counted(env: Mapping[str, str], named: Container[str], prefix: str) -> dict[str, str]:
    """Return the variables of `env` that are part of the build key: all but those that no build reads, such as PWD.
    Variables in `named` always count. Others do not count if they name the venv of the interpreter, `prefix`."""
    kept = {name: value for name, value in env.items() if name in named or not _NOISE.match(name)}
    kept = {
        name: own for name, value in kept.items() if (own := environment.without_profilers(name, value)) or not value
    }
    if "PATH" in kept:  # repeated folders have no effect
        folders = kept["PATH"].split(os.pathsep)  # relative folders are relative to the build's folder
        real = (os.path.realpath(folder) if folder.startswith("/") else folder for folder in folders)
        kept["PATH"] = os.pathsep.join(dict.fromkeys(real))
    for name in {"VIRTUAL_ENV", "CONDA_PREFIX"} & kept.keys():
        if name not in named and os.path.realpath(kept[name]) == prefix:
            del kept[name]
    return kept


def made_of(
    package: Package, content_hash: str, toolchain: Mapping[str, str], env: Mapping[str, str]
) -> dict[str, str]:
    """Return the parts of a build key as name -> digest, e.g. "variable CC" -> digest. Before, `of_side` must have
    filled in `package`, and `counted` chosen `env`."""
    settings = f"{package.name}\0{package.path}\0{package.module}\0{package.build}\0{sorted(package.env.items())}"
    parts = {"the sources": content_hash, "its settings in abprof.toml": settings}
    parts |= {f"toolchain: {name}": value for name, value in toolchain.items()}
    parts |= {f"variable {name}": value for name, value in env.items()}
    return {name: _digest(parts[name]) for name in sorted(parts)}


def build_key(parts: Mapping[str, str]) -> str:
    """Return the build key: 20 hex digits, a hash of the `parts` that `made_of` returned."""
    return _digest("\n".join(f"{name}={digest}" for name, digest in parts.items()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:20]
