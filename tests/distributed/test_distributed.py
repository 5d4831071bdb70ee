"""trigraph.distributed under mpiexec: the bits of one process, graphs in pieces, and errors that end all ranks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
HERE = Path(__file__).parent


SETTINGS = ("blocks", "whole", "scattered")


def ranks(number, script, *arguments, runner=(), timeout=500, threads="1"):
    """Run a script of this folder on some ranks, more than there are processors: those that wait let others run."""
    command = [MPIEXEC, "-n", str(number), sys.executable, *runner, str(HERE / script), *arguments]
    quiet = {"OMP_NUM_THREADS": threads or "", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    quiet["PYTHONPATH"] = str(HERE.parent / "helpers")
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={n: v for n, v in (os.environ | quiet).items() if v},
        check=False,
    )


def digests(number, script, *arguments, **options):
    run = ranks(number, script, *arguments, **options)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.splitlines()


@pytest.fixture(scope="module")
def one_rank():
    return digests(1, "distributed_worker.py", *SETTINGS)


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (2, ["whole"]),
        (3, ["blocks", "scattered"]),
        (7, ["scattered"]),
        *(pytest.param(n, SETTINGS, marks=pytest.mark.slow) for n in (2, 3, 7)),
    ],
)
def test_any_number_of_ranks_has_the_bits_of_one_process(one_rank, number, settings):
    """Every operator and order; the ranks compare rows with one process, and sums over everything with each other."""
    found = digests(number, "distributed_worker.py", *settings)
    assert len(found) == len(settings)
    assert set(found) <= set(one_rank)


def test_training_steps_have_the_bits_of_one_rank():
    pytest.importorskip("torch")
    assert digests(3, "distributed_torch.py") == digests(1, "distributed_torch.py")


def test_the_example_prints_the_same_for_any_number_of_ranks():
    pytest.importorskip("torch")
    one, two = (digests(n, "../../examples/divided_forces.py", "--steps", "5") for n in (1, 2))
    assert one == two
    errors = [float(re.search(r"force (\S+)", line)[1]) for line in one[:2]]
    assert errors[1] < 0.9 * errors[0]


def test_graphs_in_pieces():
    for number in (1, 3):
        assert "".join(digests(number, "distributed_pieces.py")).count("right") == number


@pytest.mark.parametrize("number", [1, 3])
def test_errors_that_are_caught_and_edges_of_the_input(number):
    pytest.importorskip("torch")
    assert "".join(digests(number, "distributed_edges.py")).count("right") == number


def test_ranks_share_the_processors_of_a_machine():
    pytest.importorskip("torch")
    assert "".join(digests(2, "distributed_threads.py", threads=None)).count("right") == 2


def test_arrays_on_a_device():
    """With a stand-in for CuPy: no device has been met."""
    assert "".join(digests(3, "distributed_device.py")).count("right") == 3


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("raises", "rank 2:\nTraceback"),
        ("raises", "KeyError: 'nobody catches this'"),
        ("too_many_rows", r"agg_weighted_n2n_fwd: embedding has shape (9, 4) on rank 2; expected 1 along axis 0"),
        ("too_many_rows", "RuntimeError: rank 2: ValueError: agg_weighted_n2n_fwd: embedding has shape"),
        ("wrong_out", "out['output_embedding'] has shape (2, 4); expected (num_dst_nodes, dim) = (1, 4)"),
        ("wrong_out", "RuntimeError: rank 2: ValueError: agg_weighted_n2n_fwd: out['output_embedding'] has shape"),
        ("other_attribute", "ValueError: agg_weighted_n2n_fwd: op is 'sum' on rank 0 and 'mean' on rank 2"),
        (
            "other_dtype",
            "embedding is of float32 with rows of shape (4,) on rank 0 and of float64 with",
        ),
        ("other_width", "and of float32 with rows of shape (5,) on rank 2"),
        (
            "other_operator",
            "ValueError: gno_kernel_fwd: the operator is gno_kernel_fwd on rank 0 and agg_weighted_n2n_fwd",
        ),
        ("other_parameters", "ValueError: gno_kernel_fwd: the digest of the numbers in params, a parameter, is"),
        ("other_graph", "ValueError: partition: graph is"),
        ("other_owner", "ValueError: partition: owner is"),
        ("no_such_rank", "ValueError: partition: owner holds 0 to 3; expected ranks 0 to 2"),
        ("no_partition", "TypeError: agg_weighted_n2n_fwd: graph is a CSC; expected a trigraph.distributed.Partition"),
        ("wrong_kind", "TypeError: agg_edge_to_edge_fwd: the partition is that of another kind of graph"),
        ("falling_source", "src of piece 0 falls; expected edges sorted by source"),
        ("falls_between_ranks", "src falls from one rank to the next"),
        ("out_of_range", "ValueError: partition_pieces: dst of piece 0 is not within 0 .. 1"),
        ("unknown_symbol", "ValueError: Partition: nothing is counted by 'num_nodes'; expected one of"),
    ],
)
def test_an_error_ends_all_ranks(case, expected):
    run = ranks(3, "distributed_failures.py", case)
    assert run.returncode != 0
    assert expected in run.stderr


@pytest.mark.parametrize(
    ("case", "runner", "status", "shown"),
    [
        ("raises", [], 1, "rank 1:\nTraceback"),
        ("interrupted", [], 130, "rank 1:\nTraceback"),
        ("interrupted_twice", [], 130, "KeyboardInterrupt"),
        ("exits", ["-m", "mpi4py"], 1, "nothing to do"),
        ("terminated", [], None, ""),
        ("killed", [], None, ""),
    ],
)
def test_a_rank_that_ends_early_ends_all(case, runner, status, shown):
    """The other rank waits in a call that this one never makes."""
    run = ranks(2, "distributed_failures.py", case, runner=runner, timeout=30)
    assert run.returncode == status if status else run.returncode != 0
    assert shown in run.stderr
