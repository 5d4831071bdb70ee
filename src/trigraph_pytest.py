"""A fixture for the tests of other projects, beside slopecheck's: pytest loads it wherever trigraph is installed.

It is no part of the package `trigraph`, so that a run of pytest that does not use the fixture does not import that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slopecheck import Result


@pytest.fixture
def verify_operator(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``verify_operator("mha_gat_n2n", function, framework="torch")``: `trigraph.verify`, with the operator first."""
    from slopecheck.pytest_plugin import require_pass
    from trigraph.testing.operators import verify

    def verify_and_require_pass(operator: str, function: Callable[..., Any], **kwargs: Any) -> Result:
        return require_pass(request, verify, function, operator, **kwargs)

    return verify_and_require_pass
