"""Fixtures that tests of torch's operators share."""

import pytest


@pytest.fixture
def python_operators(monkeypatch):
    """Let operators compute in Python, where tests can observe the steps between a call and its backend."""
    from trigraph.torch.library import OPERATORS_OF_TORCH

    for op in OPERATORS_OF_TORCH.values():
        monkeypatch.setattr(op, "native", None)
