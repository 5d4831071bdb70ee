"""Fixtures for the tests of other projects; pytest loads this module wherever slopecheck is installed.

A pytest run that uses none of the fixtures imports no checks. A failure prints its reason without a traceback.
With ``--verify-report DIR``, every result is saved as a page and as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slopecheck.result import Result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--verify-report``."""
    group = parser.getgroup("slopecheck")
    group.addoption(
        "--verify-report", metavar="DIR", help="Write the results of the verify_... fixtures to DIR, as pages and JSON."
    )


def _save_result(request: pytest.FixtureRequest, result: Result) -> None:
    """Write a result as a page and as JSON, named after the test, if the user asked for it."""
    folder = request.config.getoption("--verify-report")
    if folder is None:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    name, number = re.sub(r"[^\w.-]+", "-", request.node.nodeid).strip("-"), 1
    path = Path(folder, f"{name}.html")
    while path.exists():
        number += 1
        path = Path(folder, f"{name}-{number}.html")
    for file in (path, path.with_suffix(".json")):
        result.save(file)


def require_pass(request: pytest.FixtureRequest, check: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return the result of a check; if it has not passed, fail the test with only the message.

    In that case `check` raises an AssertionError with the attribute `result`.
    """
    wrong = ""
    try:
        result = check(*args, **kwargs)
    except AssertionError as error:
        if not hasattr(error, "result"):
            raise
        result, wrong = error.result, str(error)
    _save_result(request, result)
    if wrong:  # fail outside the handler, or pytest would also show the handled exception
        pytest.fail(wrong, pytrace=False)
    return result


@pytest.fixture
def verify_derivatives(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``verify_derivatives(function, inputs, order=3)``: `slopecheck.check_derivatives`."""
    from slopecheck.derivatives import check_derivatives

    return partial(require_pass, request, check_derivatives)


@pytest.fixture
def verify_calculator(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``verify_calculator(factory, structures)``: `slopecheck.check_calculator`."""
    from slopecheck.calculators import check_calculator

    return partial(require_pass, request, check_calculator)
