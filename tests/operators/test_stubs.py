"""Tests that the installed type stubs agree with the functions, and that mypy reports invalid calls."""

import ast
import inspect
import json
import re
import sys
from importlib.resources import files
from importlib.util import find_spec

import pytest
from programs import run_command

import trigraph
from trigraph.table import NAMED, OVER_FORMS, result_type

EVERY = NAMED | OVER_FORMS

VALID_PROGRAM = """
import numpy as np
import trigraph
from numpy.typing import NDArray
from trigraph.results import GnoKernelBwd, GnoKernelBwd2, RadialBasisFwd

Array = NDArray[np.float64]
x, p = np.ones((3, 2)), np.ones(7)
kernel: Array = trigraph.gno_kernel_fwd(x, p, 1, np.int64(2))
small: NDArray[np.float32] = trigraph.gno_kernel_fwd(x.astype(np.float32), p.astype(np.float32), 1, 2)
first: GnoKernelBwd[Array] = trigraph.gno_kernel_bwd(kernel, x, p, 1, 2, wrt=["coords"], out={"coords": x})
coords: Array | None = first.coords
second: GnoKernelBwd2[Array] = trigraph.gno_kernel_bwd2(coords, None, kernel, x, p, f_in=1, f_out=2, backend="pyref")
graph: trigraph.CSC = trigraph.CSC(np.array([0, 1]), np.array([0]))
edges: trigraph.EdgeGraph = trigraph.EdgeGraph(np.array([0, 1]), np.array([1, 0]), 2)
third: GnoKernelBwd2[Array] = trigraph.gno_kernel_bwd2(grad_kernel=kernel, coords=x, params=p, f_in=1, f_out=2)
version: str = trigraph.__version__
kind: type[GnoKernelBwd[Array]] = trigraph.results.GnoKernelBwd[Array]
ones: Array | None = trigraph.agg_weighted_n2n_fwd(x, graph=graph, op="mean").node_degree
members = np.array([0])
m_ca: Array = trigraph.interaction_bilinear_fwd(x, x, x, x, members, idx_in=members)
basis: RadialBasisFwd[Array] = trigraph.radial_basis_fwd(p, p, envelope_exponent=np.int64(6))
out: Array = trigraph.agg_edge_to_edge_fwd(x, x, x, x, edges, 1, num_radial=2, exclude=None)
"""
# Calls and the error codes that mypy must report.
INVALID_LINES = {
    "trigraph.gno_kernel_fwd(x, p.astype(np.float32), 1, 2)": "type-var",
    "trigraph.gno_kernel_fwd([[1.0]], p, 1, 2)": "type-var",
    "trigraph.gno_kernel_fwd(x, p, 1.0, 2)": "arg-type",
    "trigraph.gno_kernel_fwd(x, p, 1)": "call-arg",
    "trigraph.gno_kernel_bwd(kernel, x, p, 1, 2, wrt='coord')": "arg-type",
    "trigraph.gno_kernel_bwd(kernel, x, p, 1, 2, backend='cuda')": "arg-type",
    "trigraph.gno_kernel_bwd(kernel, x, p, 1, 2, out={'features': x})": "dict-item",
    "trigraph.agg_edge_to_edge_fwd(x, x, x, x, graph)": "arg-type",
    "trigraph.agg_edge_to_edge_fwd(x, x, x, x, edges, exclude='nodes')": "arg-type",
    "trigraph.agg_edge_to_edge_bwd2_main(x, x, x, x, x, x, x, edges).vec": "attr-defined",
    "trigraph.gno_kernel_bwd2(coords=x, params=p, f_in=1, f_out=2)": "call-overload",
    "trigraph.interaction_bilinear_fwd(x, x, x, x, members, atoms=members)": "arg-type",
    "trigraph.gno_nothing": "attr-defined",
}


def parse_stub(name):
    """Return the syntax tree of an installed stub."""
    return ast.parse(files("trigraph").joinpath(*name.split("/")).read_text(encoding="utf-8"))


def list_parameters_and_docstrings(functions):
    """Return the parameters and docstring of each function."""
    return {n: [list(inspect.signature(f).parameters), inspect.getdoc(f)] for n, f in functions.items()}


def get_checked_stub_functions(tree, expected):
    """Compare a stub's parameters and docstrings with the expected ones; return its function nodes."""
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    arguments = {name: [a.arg for a in node.args.args + node.args.kwonlyargs] for name, node in nodes.items()}
    assert {name: [arguments[name], ast.get_docstring(node)] for name, node in nodes.items()} == expected
    return nodes


def test_torch_stub_matches_its_functions():
    functions = pytest.importorskip("trigraph.torch.functions")
    expected = functions.FUNCTIONS | {"basis_embedding": functions.basis_embedding}
    get_checked_stub_functions(parse_stub("torch/__init__.pyi"), list_parameters_and_docstrings(expected))


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="no mpi4py")
def test_distributed_stub_matches_its_functions():
    """The stub of trigraph.distributed is correct (checked in a new process, since ASE uses MPI once it is loaded)."""
    script = f"""
import inspect, json, mpi4py
mpi4py.rc.initialize = False
from trigraph.distributed.functions import FUNCTIONS
{inspect.getsource(list_parameters_and_docstrings)}
print(json.dumps(list_parameters_and_docstrings(FUNCTIONS)))
"""
    printed = run_command(sys.executable, "-c", script).stdout
    get_checked_stub_functions(parse_stub("distributed/__init__.pyi"), json.loads(printed))


def test_stub_matches_the_package():
    tree = parse_stub("__init__.pyi")
    names = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    assert sorted(ast.literal_eval(names)) == sorted(trigraph.__all__)
    imported = {a.asname for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names if a.asname}
    assert imported == {*dir(trigraph)} - {*EVERY, "__version__"}
    for name, node in get_checked_stub_functions(
        tree, list_parameters_and_docstrings({n: getattr(trigraph, n) for n in EVERY})
    ).items():
        assert [a.arg for a in node.args.kwonlyargs] == ["out", "backend"]
        defaults = [ast.literal_eval(d) for d in node.args.defaults + node.args.kw_defaults]
        real = [p.default for p in inspect.signature(getattr(trigraph, name)).parameters.values()]
        assert repr(defaults) == repr([default for default in real if default is not inspect.Parameter.empty])
    tree = parse_stub("results.pyi")
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    expected = {result_type(n): op for n, op in EVERY.items() if not op.returns_array}
    assert classes.keys() == {kind.__name__ for kind in expected}
    for kind in expected:
        assert [n.target.id for n in classes[kind.__name__].body if isinstance(n, ast.AnnAssign)] == list(kind._fields)


def test_mypy_reports_only_invalid_calls(tmp_path):
    # Analysing the annotations of ASE and torch would take too long.
    override = '[[tool.mypy.overrides]]\nmodule = ["ase.*", "torch.*"]\nfollow_imports = "skip"\n'
    (tmp_path / "pyproject.toml").write_text(f'[tool.mypy]\nfollow_imports = "silent"\n{override}')
    (tmp_path / "good.py").write_text(VALID_PROGRAM)
    (tmp_path / "bad.py").write_text(VALID_PROGRAM + "".join(f"{line}\n" for line in INVALID_LINES))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    done = run_command(*command, "good.py", "bad.py", cwd=tmp_path, status=1)
    errors = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    first = len(VALID_PROGRAM.splitlines()) + 1
    expected = [("bad", str(first + i), code) for i, code in enumerate(INVALID_LINES.values())]
    assert errors == expected, done.stdout + done.stderr
