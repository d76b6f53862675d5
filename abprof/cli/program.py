"""A command line behind which a whole other one may stand: `-- PROGRAM ITS ARGS`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_PROGRAM = "abprof.program"  # in the context


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
