"""Helper for tests of programs compiled by torch."""

import pytest

pytest.importorskip("torch")

from trigraph.torch.graphs import COMPILER_TRACES_CALLS

compiled_whole = pytest.mark.skipif(not COMPILER_TRACES_CALLS, reason="torch before 2.11 breaks the graph at each call")
