"""A command line behind which a whole other one may stand: `-- PROGRAM ITS ARGS`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from typer.core import TyperCommand

from abprof.cli.given import given
from abprof.records.errors import AbprofError

_PROGRAM = "abprof.program"  # in the context
_OF_WORKLOADS = {
    "watch",
    "kernels",
    "workloads",
    "workloads_from",
    "preset",
    "set_",
    "cell",
    "peers",
    "peer",
    "python",
    "timer",
    "sustained",
    "probe",
    "allow_wrong",
    "autotune",
    "check",
    "rebuild",
    "dry_run",
    "resume",
}


class BeforeProgram(TyperCommand):
    """A command that reads only what is before the `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what is before the `--`."""
        own = before(args)
        ctx.meta[_PROGRAM] = args[len(own) + 1 :] if len(own) < len(args) else None
        return super().parse_args(ctx, own)


def before(args: list[str]) -> list[str]:
    """The words of a command line that are abprof's own."""
    return args[: args.index("--")] if "--" in args else args


def program(ctx: Any) -> list[str] | None:
    """What stands behind the `--`; None without one."""
    found: list[str] | None = ctx.meta[_PROGRAM]
    return found


def refuse_beside(ctx: Any, program: list[str], example: str, allowed: Collection[str] = ()) -> None:
    """Raises AbprofError for an option that only workloads follow, and for no command at all."""
    if not program:
        raise AbprofError("there is no command", where="--", advice=example)
    for name, option in given(ctx).items():
        if name in _OF_WORKLOADS and name not in allowed:
            raise AbprofError("goes with workloads, not with a command", where=option, advice="leave it out")
