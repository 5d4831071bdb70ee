"""Timing of DimeNet++'s energies and forces for small structures: eager, compiled, and as a package run from C++.

``python -m trigraph.benchmarks.packages PROGRAM`` exports the model and runs PROGRAM, built in examples/cpp-potential.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def measure_fastest_call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> float:
    """Return the time of the fastest of 200 calls in milliseconds."""
    times = []
    for _ in range(200):
        began = time.perf_counter()
        function(*arguments, **keywords)
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def main(program: str) -> None:
    """Print a line of times and ratios for each structure."""
    from ase import Atoms
    from ase.build import molecule
    from ase.io import write

    from trigraph.torch.nn import DimeNetPlusPlus
    from trigraph.torch.potentials.compiled import compile_potential
    from trigraph.torch.potentials.export import export_potential

    torch.manual_seed(0)
    model = DimeNetPlusPlus(32, 1, 2, 16, 4, 32, 3, 4, output_initializer="glorot_orthogonal").eval()
    compiled = compile_potential(model)
    cluster = Atoms(numbers=torch.randint(1, 9, (24,)).numpy(), positions=5.0 * torch.rand(24, 3).numpy())
    with tempfile.TemporaryDirectory() as folder:
        package = f"{folder}/potential.pt2"
        export_potential(model, package, stress=False)
        for name, atoms in ("water", molecule("H2O")), ("24 atoms", cluster):
            path = f"{folder}/{name}.xyz"
            write(path, atoms, format="extxyz", columns=["symbols", "positions"])
            given = torch.as_tensor(atoms.numbers), torch.as_tensor(atoms.positions).float()
            neighbors = model.neighbors(given[1])
            times: dict[str, Any] = {}
            for _ in range(2):  # the first round is a warm-up
                times["eager"] = measure_fastest_call(model.energy_forces_stress, *given, neighbors=neighbors)
                times["compiled"] = measure_fastest_call(compiled.energy_forces_stress, *given, neighbors=neighbors)
                result = subprocess.run([program, package, path], capture_output=True, text=True, check=True)
                times["package from C++"] = float(result.stderr.split()[-2])
            print(name, *(f"{what} {t:.2f} ms ({t / times['eager']:.2f})" for what, t in times.items()), sep="; ")


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
