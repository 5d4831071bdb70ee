"""Fixtures shared by tests of torch operators."""

import pytest


@pytest.fixture
def force_python_operators(monkeypatch):
    """Make the operators run in Python instead of C++, so that tests can observe the calls to a backend."""
    from trigraph.torch.library import OPERATORS_OF_TORCH

    for op in OPERATORS_OF_TORCH.values():
        monkeypatch.setattr(op, "native", None)
