"""Checks of `trigraph verify` (finite differences, comparisons of backends, golden vectors), and the report."""

from importlib.util import find_spec

if find_spec("slopecheck") is None:
    raise ImportError("trigraph.verification needs slopecheck: pip install 'trigraph[verify]'")
