"""Tests of trigraph.distributed under mpiexec: agreement with one process, graphs in pieces, memory, and errors."""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
HERE = Path(__file__).parent
slow = pytest.mark.slow

CHECKS = [
    "operators.equals_one_process_in_one_chunk",
    "operators.equals_one_rank_in_chunks",
    "operators.equals_one_process_from_graph_pieces",
    "operators.owners_are_balanced_and_halos_minimal",
    "errors.refuses_wrong_arguments",
    "errors.can_compute_after_errors",
    "errors.empty_graphs_have_zero_gradients",
    "errors.validates_graph_pieces",
    "errors.distribute_and_collect_refuse_wrong_rows",
    "errors.accepts_equal_arguments_of_any_type",
    "errors.partitions_share_communicator",
    "threads.divides_processors",
    "operators.equals_one_process_on_device",  # must precede torch, which cannot view the stand-in's arrays
]
if find_spec("torch"):
    CHECKS += [
        "torch.dimenet_equals_one_process",
        "torch.differentiates_at_most_twice",
        "torch.refuses_wrong_arguments_of_total",
    ]
    CHECKS += ["threads.divides_torch_threads"]


def run_script_on_ranks(number, script, *arguments, timeout=500, threads="1"):
    """Run a script on some ranks; waiting ranks yield, because there may be fewer processors than ranks."""
    command = [MPIEXEC, "-n", str(number), sys.executable, str(HERE / script), *arguments]
    with tempfile.TemporaryDirectory() as folder:  # for files that MPICH leaves behind
        variables = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
        variables |= {"OMP_NUM_THREADS": threads, "PYTHONPATH": str(HERE.parent / "helpers"), "TMPDIR": folder}
        environment = {n: v for n, v in (os.environ | variables).items() if v is not None}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)


@pytest.fixture(scope="module", params=[2, *(pytest.param(n, marks=slow) for n in (1, 3, 7))])
def checks_process(request):
    """Run all checks in one MPI run, because starting the ranks takes longer than most checks."""
    return run_script_on_ranks(request.param, "distributed_checks.py", *CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_each_mpi_check_passes_on_all_ranks(checks_process, check):
    passed = [line.split()[0] for line in checks_process.stdout.splitlines()]
    assert check in passed, checks_process.stderr[-3000:]


def test_ranks_end_after_all_checks(checks_process):
    assert checks_process.returncode == 0, checks_process.stderr[-3000:]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be bound to processors")
def test_ranks_share_the_processors_of_a_machine():
    finished = run_script_on_ranks(
        2, "distributed_checks.py", "threads.uses_all_processors_until_partition", threads=None
    )
    assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.parametrize(("case", "status"), [("raises", 1), ("interrupted", 130)])
def test_a_rank_that_ends_early_ends_all(case, status):
    """If a rank exits while others wait for it in a call, all ranks end."""
    finished = run_script_on_ranks(2, "distributed_ends.py", case, timeout=30)
    assert finished.returncode == status
    assert "rank 1:\nTraceback" in finished.stderr


@slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_example_is_independent_of_ranks(number):
    done = run_script_on_ranks(number, "distributed_checks.py", "torch.example_is_independent_of_ranks")
    assert done.returncode == 0, done.stderr[-3000:]


@slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these memory limits")
def test_two_ranks_sum_graph_too_large_for_one():
    """Two ranks compute a sum over a graph that does not fit into the limited memory of one rank."""
    edges, limit = 500_000, 100_000_000  # bytes per rank; one rank needs 120 MB, each of two 80 MB
    alone = run_script_on_ranks(1, "distributed_memory.py", str(edges), str(limit))
    assert alone.returncode != 0
    assert "MemoryError" in alone.stderr
    for number, bytes_of_each in ((2, limit), (1, 2 * limit)):  # one rank needs more than `limit`
        done = run_script_on_ranks(number, "distributed_memory.py", str(edges), str(bytes_of_each))
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == f"{edges} edges"
