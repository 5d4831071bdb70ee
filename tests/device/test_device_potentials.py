"""Tests that potentials agree with PyTorch Geometric's models, and compiled potentials with uncompiled ones."""

import os

import pytest

from trigraph.benchmarks.measure import compute_relative_error, convert_to_numpy
from trigraph.benchmarks.models import PROGRAMS
from trigraph.benchmarks.run import compute_peer_tolerance

THREADS = 4  # number of torch's compiler processes per test, each of which imports torch
FORCES = ("dimenet-molecules", "dimenet-energy-forces", "dimenet-copper")
TRAINING = tuple(f"{name}-training" for name in FORCES)
CURVATURE = tuple(f"dimenet-{structure}-curvature-training" for structure in ("slab", "copper", "molecules"))
NAMED = {program.name: program for program in PROGRAMS}


# The curvature of molecules is not compared with PyTorch Geometric, whose closed-form basis loses a digit;
# test_model_gradients_agree_with_cpu compares it with the CPU. Compiling curvature takes minutes, so it comes last.
@pytest.mark.parametrize(
    ("contender", "name"),
    [("pyg", n) for n in (*TRAINING, *CURVATURE[:2], *FORCES)]
    + [("trigraph-compiled", n) for n in (*TRAINING, *FORCES, *CURVATURE)],
)
def test_potentials_agree_with_pyg_and_compiled_versions(target, torch, contender, name, record_property):
    for module in ("ase", "torch_geometric")[: 1 + (contender == "pyg")]:
        pytest.importorskip(module)
    if target.rehearsal and contender != "pyg":
        pytest.skip("compiles for minutes")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(THREADS))
    program, results = NAMED[name], []
    sizes = {n: target.shrink_in_rehearsal(value, min(value, 3)) for n, value in program.sizes.items()}
    for implementation in ("trigraph", contender):
        with torch.device("cpu" if target.rehearsal else "cuda"):
            call = program.make_contender_call(implementation, sizes, "float32")
        results.append({n: convert_to_numpy(t) for n, t in call().items()})
    error = compute_relative_error(results[1], results[0])
    record_property("error", error)
    assert error <= compute_peer_tolerance("float32", program.terms)
