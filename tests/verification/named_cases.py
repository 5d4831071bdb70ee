"""Cases by names, for the tests of verification."""

from trigraph.table import DEFINITIONS
from trigraph.verification.cases import build, variants

BY_NAME = {d.name: d for d in DEFINITIONS}


def named(name, variant_name, dtype="float64", **setting):
    """Return a definition's case of a variant, the first one that has the setting."""
    found = [v for v in variants(BY_NAME[name]) if v.name == variant_name and setting.items() <= v.setting.items()]
    return build(BY_NAME[name], found[0], dtype, 0)
