"""The pytest fixture `abprof_compare`. pytest loads this module in every session, so it imports abprof on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest


@pytest.fixture
def abprof_compare(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`abprof.compare`, under the test's name. The test fails for the verdicts of `fail_on`: slower and broken."""

    def compare(*args: Any, **options: Any) -> Any:
        result = import_module("abprof").compare(*args, **{"name": request.node.name, "quiet": True, **options})
        if result.exit_code == 1:
            pytest.fail(repr(result), pytrace=False)
        return result

    return compare
