"""Mistakes that people have made (`verification/field/`): each is found by the check it names, its twin passes."""

import pytest

pytest.importorskip("torch")

from trigraph.testing import check_derivatives
from trigraph.verification.field import FIELD, TEXTBOOK

ENTRIES = [pytest.param(entry, id=entry.name) for entry in (*TEXTBOOK, *FIELD)]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_named_check_fails(entry):
    result = check_derivatives(entry.faulty, entry.inputs(), framework="torch", raises=False)
    orders = [check.case for check in result.failures if check.kind == entry.check]
    assert any(case in ("", str(entry.order)) for case in orders), str(result)


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_repaired_function_passes(entry):
    check_derivatives(entry.repaired, entry.inputs(), framework="torch")
