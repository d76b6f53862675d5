"""The doorway to TOML: a file that anybody may have written is a table, or one clear line."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from abprof.errors import AbprofError


def loads(text: str, where: str) -> dict[str, Any]:
    """The file's table. Raises AbprofError with the line, where the parser tells it."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise AbprofError(str(error), where=f"{where}:{line[1]}" if line else where) from error
    except RecursionError:
        raise AbprofError("too many brackets within brackets", where=where) from None
    except ValueError as error:  # an integer of thousands of digits
        raise AbprofError(str(error), where=where) from None
