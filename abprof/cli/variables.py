"""Options from the environment: `ABPROF_THRESHOLD` for `--threshold`, and an error about one names the variable."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from abprof.records.errors import AbprofError

_OWN = (
    "ABPROF_CACHE_DIR",
    "ABPROF_STATE_DIR",
    "ABPROF_SHARD_DEVICE",
    "ABPROF_BUILD_DIR",
    "ABPROF_WORKER",
)  # docs/CONFIG.md
USAGE: Any = typer.BadParameter.__mro__[2]  # click's ClickException, whichever package holds it


class FromEnvironment(TyperCommand):
    """A command whose options that take a value are also read from ABPROF_NAME, several values parted by blanks.

    Not --resume: a variable that stays set would go on with one run for ever.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        options: list[Any] = [param for param in self.params if param.param_type_name == "option"]
        for param in options:
            if not param.is_flag and param.name != "resume":
                param.show_envvar = False  # the command's help says it once
                param.envvar = "ABPROF_" + param.opts[0].removeprefix("--").replace("-", "_").upper()

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context. Raises AbprofError for an option that took the next one for its value."""
        ctx = super().make_context(info_name, args, parent, **extra)
        if not ctx.resilient_parsing:
            _no_option_is_a_value(ctx)
        return ctx


def _no_option_is_a_value(ctx: Any) -> None:
    options = [param for param in ctx.command.params if param.param_type_name == "option"]
    names = {name for param in options for name in (*param.opts, *param.secondary_opts)}
    for param in options:
        value = ctx.params.get(param.name)
        for word in value if isinstance(value, list | tuple) else [value]:
            if isinstance(word, str) and word in names:
                raise AbprofError(f"it has no value: the next word is {word}", where=param.opts[0])


@contextlib.contextmanager
def as_given(ctx: typer.Context) -> Iterator[None]:
    """While the block runs, an error about an option whose value came from the environment names the variable."""
    try:
        yield
    except AbprofError as error:
        option, _, rest = error.where.partition(" ")
        variable = _given(ctx).get(option)
        if variable is None:
            raise
        raise AbprofError(error.what, where=f"{variable} {rest}".strip(), advice=error.advice) from error


def slips(ctx: typer.Context, environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that is nearly one of abprof's and none: what it says is not followed."""
    known = [*_OWN, *(param.envvar for param in ctx.command.params if isinstance(param.envvar, str))]
    unknown = [name for name in environ if name.startswith("ABPROF_") and name not in known]
    near = {name: difflib.get_close_matches(name, known, 1, cutoff=0.9) for name in sorted(unknown)}
    return [f"{name} is no variable of abprof: did you mean {meant[0]}?" for name, meant in near.items() if meant]


def usage(error: Any) -> str:
    """What typer says of a value that it could not read; of one from the environment by the variable's name."""
    text, param, ctx = str(error.format_message()), getattr(error, "param", None), getattr(error, "ctx", None)
    if param is None or ctx is None or param.opts[0] not in _given(ctx):
        return text
    return f"{param.envvar}: {error.message}"


def _given(ctx: Any) -> dict[str, str]:
    """Option -> variable, of those whose value came from the environment."""
    return {
        option: param.envvar
        for param in ctx.command.params
        if param.name and (source := ctx.get_parameter_source(param.name)) and source.name == "ENVIRONMENT"
        for option in param.opts
    }
