"""The history as a parquet file, for DuckDB and its like. Needs pyarrow (`pip install 'abprof[parquet]'`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from abprof.extras.history.index import Row
from abprof.extras.history.night import Value
from abprof.extras.history.table import COLUMNS, rows
from abprof.records.errors import AbprofError


def write(values: Iterable[tuple[Row, Value]], file: Path) -> int:
    """Write the table; how many rows. Raises AbprofError where pyarrow is missing or the disk refuses."""
    table = pd.DataFrame.from_records(list(rows(values)), columns=list(COLUMNS))
    numbers = ("base", "head", "pct", "low_pct", "high_pct")
    table = table.astype(dict.fromkeys(numbers, "float64"))
    try:
        table.to_parquet(file, engine="pyarrow", index=False)
    except ImportError:
        advice = "pip install 'abprof[parquet]', or export to a file that ends in .csv"
        raise AbprofError("parquet needs pyarrow, which is not installed", where=str(file), advice=advice) from None
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(file)) from None
    return len(table)
