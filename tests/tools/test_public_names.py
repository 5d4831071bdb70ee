"""The package uses public names of other libraries alone: none that begins with an underscore."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "fortran", "pyref", "gpu", "verification", "benchmarks", "examples", "docs", "tools")
LIBRARIES = ("torch", "torch_geometric", "cupy", "cupy_backends", "numpy", "scipy", "ase", "matscipy", "mpi4py")
LIBRARIES += ("torch_sim",)


PRIVATE = re.compile(r"(?:^|\.)_(?!_)")


def private_names(tree):
    """Return the private names of LIBRARIES that a module imports or reads as attributes."""
    aliases, found = set(), []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in node.names:
                if (start + name.name).split(".")[0] in LIBRARIES:
                    aliases.add(name.asname or (name.name if start else name.name.split(".")[0]))
                    found.append(start + name.name)
    attributes = (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    found += [name for name in attributes if re.fullmatch(r"[\w.]+", name) and name.split(".")[0] in aliases]
    return list(filter(PRIVATE.search, found))


DOCUMENTED = {"packaged.py": {"torch._inductor"}}  # where torch documents the functions of AOTInductor


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_private_names(folder):
    paths = (ROOT / folder).rglob("*.py")
    found = {str(p): set(private_names(ast.parse(p.read_text()))) - DOCUMENTED.get(p.name, set()) for p in paths}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch import _C",
        "import torch\ntorch._C.x()",
        "import numpy as np\nnp.core._methods",
        "from torch.utils import data\ndata._utils.f()",
    ],
)
def test_private_names_are_seen(line):
    assert private_names(ast.parse(line))
