"""Tests of importing trigraph.torch in a new process: safe globals, the OpenMP library, and the first call."""

import os
import sys
import textwrap

import pytest
from programs import run_command

torch = pytest.importorskip("torch")

from trigraph.torch.graphs import COMPILER_TRACES_CALLS  # noqa: E402

# Prints the OpenMP library in use. A trigraph wheel also loads its own, which stays unused if torch's is loaded.
LIBRARY = """
    import ctypes
    call = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    for line in open("/proc/self/maps"):
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= call < end:
            print(line.split()[-1])
"""


def capture_output_and_library(script):
    """Run a script in a new process; return the lines that it prints."""
    script = "import sys\n" + textwrap.dedent(script) + textwrap.dedent(LIBRARY)
    return run_command(sys.executable, "-c", script).stdout.splitlines()


def assert_openmp_library_is_torchs(path):
    """Assert that torch's OpenMP library is used, since the threads of two libraries would compete for processors."""
    assert os.path.realpath(path).startswith(os.path.realpath(os.path.dirname(torch.__file__)))


def test_import_adds_no_numpy_safe_globals():
    """If torch is imported first, no NumPy names are added to torch.load's safe globals: object arrays are unsafe."""
    script = """
        import io, pickle
        import torch
        import numpy as np

        class Attack:
            def __reduce__(self):
                return np.ndarray, ((1,), np.dtype("O"), b"A" * 8)

        class Harmless:
            def __reduce__(self):
                return bytes, ([65],)

        before = set(torch.serialization.get_safe_globals())
        import trigraph.torch
        added = {f"{a.__module__}.{a.__qualname__}" for a in set(torch.serialization.get_safe_globals()) - before}
        print(*sorted(name for name in added if not name.startswith("torch.")))  # torch 2.6 imports its compiler
        for value in (Attack(), Harmless(), np.ones(2), np.dtype("f8")):
            file = io.BytesIO()
            torch.save(value, file)
            file.seek(0)
            try:
                torch.load(file, weights_only=True)
            except pickle.UnpicklingError as error:
                print("refused")
        trigraph.gno_kernel_fwd(np.ones((4, 3)), np.ones(86), 2, 3)
    """
    added, *refused, library = capture_output_and_library(script)
    assert added == "trigraph.torch.graphs.rebuilt trigraph.torch.graphs.rebuilt_apart"
    assert refused == ["refused"] * 4
    assert_openmp_library_is_torchs(library)


def test_trigraph_works_if_imported_before_torch():
    """If trigraph is imported first, a compiled first call is compiled only once, although nothing is cached yet."""
    script = """
        import trigraph
        import numpy as np
        trigraph.gno_kernel_fwd(np.ones((4, 3)), np.ones(86), 2, 3)
        import torch
    """
    if COMPILER_TRACES_CALLS:
        script += """
        from torch._dynamo import compiled_autograd
        from torch._dynamo.utils import counters
        import trigraph.torch as tt

        graph = trigraph.CSC.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]))
        graph.prepare()
        x, a = torch.ones(3, 4, requires_grad=True), torch.ones(8, requires_grad=True)
        program = torch.compile(lambda x, a: tt.mha_gat_n2n(x, x, a, graph, 2).output_embedding, backend="aot_eager")
        for _ in range(3):
            program(x, a).sum().backward()
        print(counters["stats"]["unique_graphs"])
        x.grad = None
        result = tt.agg_weighted_n2n(x, None, graph).output_embedding.sum()
        with compiled_autograd._enable(torch.compile(backend="eager")):
            result.backward()  # no call before this one has asked for the derivative
        print(x.grad.sum().item())
        """
    *lines, library = capture_output_and_library(script)
    assert_openmp_library_is_torchs(library)
    # There is one compilation, and the gradient of a sum of 12 numbers adds up to 12.
    assert lines == (["1", "12.0"] if COMPILER_TRACES_CALLS else [])
