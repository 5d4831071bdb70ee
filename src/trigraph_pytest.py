"""Fixtures for the tests of other projects: pytest loads this module wherever trigraph is installed.

It is no part of the package `trigraph`, so that a run of pytest that uses none of the fixtures does not import that. A
failure prints what is wrong, without a traceback. With ``--verify-report DIR`` every result is kept, as a page and as
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from trigraph.testing.result import Result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--verify-report``."""
    group = parser.getgroup("trigraph")
    group.addoption(
        "--verify-report", metavar="DIR", help="Keep what the fixtures verify_... find as pages and JSON in DIR."
    )


def _kept(request: pytest.FixtureRequest, result: Result) -> None:
    """Write a result as a page and as JSON, named as the test, if that is asked for."""
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


def _checked(request: pytest.FixtureRequest, check: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return the result of a check; let the test fail with its words alone where something is wrong."""
    from trigraph.testing.operators import OperatorError
    from trigraph.testing.result import DerivativeError

    wrong = ""
    try:
        result = check(*args, **kwargs)
    except (DerivativeError, OperatorError) as error:
        result, wrong = error.result, str(error)
    _kept(request, result)
    if wrong:  # told here, where no exception is handled that pytest would show as well
        pytest.fail(wrong, pytrace=False)
    return result


@pytest.fixture
def verify_operator(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``verify_operator("mha_gat_n2n", function, framework="torch")``: `trigraph.verify`, with the operator first."""
    from trigraph.testing.operators import verify

    def check(operator: str, function: Callable[..., Any], **kwargs: Any) -> Result:
        return _checked(request, verify, function, operator, **kwargs)

    return check


@pytest.fixture
def verify_derivatives(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``verify_derivatives(function, inputs, framework="torch")``: `trigraph.testing.check_derivatives`."""
    from trigraph.testing.derivatives import check_derivatives

    return partial(_checked, request, check_derivatives)


@pytest.fixture
def verify_calculator(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``verify_calculator(factory, structures)``: `trigraph.testing.check_calculator`."""
    from trigraph.testing.calculators import check_calculator

    return partial(_checked, request, check_calculator)
