"""What tests of torch's operators share."""

import pytest


@pytest.fixture
def python_operators(monkeypatch):
    """Operators compute in Python, where what happens between a call and its backend can be seen."""
    from trigraph.torch.library import OPERATORS_OF_TORCH

    for op in OPERATORS_OF_TORCH.values():
        monkeypatch.setattr(op, "native", None)
