"""Which options stand on the command line: what would not be followed is refused by its name."""

from __future__ import annotations

from typing import Any


def given(ctx: Any) -> dict[str, str]:
    """Parameter -> the option's first name (`set_` -> `--set`), of what the command line gives in so many words."""
    return {
        param.name: param.opts[0]
        for param in ctx.command.params
        if param.name and (source := ctx.get_parameter_source(param.name)) and source.name == "COMMANDLINE"
    }
