"""Mistakes that people have made (`verification/field/`): each is found by the check it names, its twin passes."""

import pytest

pytest.importorskip("torch")

from trigraph.testing import check_derivatives
from trigraph.verification.field import FIELD, TEXTBOOK, rows

ENTRIES = [pytest.param(entry, id=entry.name) for entry in (*TEXTBOOK, *FIELD)]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_named_check_fails(entry):
    result = check_derivatives(entry.faulty, entry.inputs(), framework="torch", raises=False)
    orders = [check.case for check in result.failures if check.kind == entry.check]
    assert any(case in ("", str(entry.order)) for case in orders), str(result)


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_repaired_function_passes(entry):
    check_derivatives(entry.repaired, entry.inputs(), framework="torch")


def test_there_are_eight_and_twenty():
    assert (len(TEXTBOOK), len(FIELD)) == (8, 20)
    assert len({entry.name for entry in (*TEXTBOOK, *FIELD)}) == 28
    assert all(entry.source and not entry.what.endswith(".") for entry in FIELD)


def test_what_torch_says_of_some():
    """The table of the documentation: four mistakes, of which torch's checks find these."""
    chosen = {e.name: e for e in (*TEXTBOOK, *FIELD)}
    names = ["contiguous only", "1e-5", "silent zero", "rows read twice"]
    table = {row[0]: row[2:] for row in rows(chosen[name] for name in names)}
    passes, finds = "**passes it**", "finds it"
    assert table == {
        "contiguous only": ("layout", passes, passes),
        "1e-5": ("differences 1", passes, passes),
        "silent zero": ("differences 2", passes, finds),
        "rows read twice": ("differences 1, differences 2, adjoint 2", finds, finds),
    }
