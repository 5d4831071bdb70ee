"""The expected check finds each wrong calculator, and correct calculators pass (slow: all calculators)."""

import pytest

pytest.importorskip("ase")

from field import calculators

from slopecheck.kinds import CALCULATOR_CHECKS

QUICK = ("hard cutoff", "old neighbours", "wall")
MISTAKES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in calculators.WRONG]


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_calculator_fails_the_expected_check(name):
    """The expected kind of check finds the mistake; `cutoff` also runs, to determine the range."""
    factory, kind = calculators.WRONG[name]
    result = calculators.check_factory(factory, set(CALCULATOR_CHECKS) - {kind, "cutoff"})
    assert result.verdict == ("inconclusive" if name == "float32 inside" else "failed"), str(result)
    assert kind in {c.kind for c in (result.failures or result.inconclusive)}, str(result)
    assert ": " in result.headline, result.headline


@pytest.mark.slow
@pytest.mark.parametrize("name", calculators.RIGHT)
def test_correct_calculator_does_not_fail(name):
    factory, skip = calculators.RIGHT[name]
    result = calculators.check_factory(factory, skip)
    # The rounding errors of energies of 40,000 eV per atom hide errors of the forces.
    assert result.verdict == ("inconclusive" if name == "large energies" else "passed"), str(result)
