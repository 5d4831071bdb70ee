"""Helper for tests of programs compiled by torch."""

import pytest

pytest.importorskip("torch")

from trigraph.torch.graphs import COMPILED

compiled_whole = pytest.mark.skipif(not COMPILED, reason="torch before 2.11 breaks the graph at each call")
