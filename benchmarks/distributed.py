"""Graph attention on a graph that is divided among ranks of MPI: what a second rank gains.

A contender's process is rank 0, which mpiexec starts with the others, each with one thread. It tells them when to make
a step; between steps they sleep, where MPI would keep the processors busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from trigraph.benchmarks import gat, worker
from trigraph.benchmarks.calls import Call, Unavailable
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.workloads import make_case

SLEEP = 1e-4  # seconds: at most so much is added to a step
SYMBOLS = dict(zip(gat.GRADIENTS, ("num_src_nodes", "num_dst_nodes", None), strict=True))


def _rank(sizes: Mapping[str, int], dtype: str) -> tuple[Callable[[], None], Callable[[], dict[str, Any]]]:
    """Return what a rank does in a step, and a function that collects what the last step has given, on all ranks."""
    from mpi4py import MPI

    from trigraph import distributed

    operators: Any = distributed  # made of the operator table
    case = make_case(gat.WORKLOADS[0], sizes, np.dtype(dtype))
    part = distributed.partition(case.graph, MPI.COMM_WORLD)
    given: dict[str, Any] = {n: part.take(case[n], s) if s else case[n] for n, s in SYMBOLS.items()}
    given |= {"graph": part, "num_heads": sizes["num_heads"], "negative_slope": gat.SLOPE}
    gradient = part.take(case["grad_output_embedding"], "num_dst_nodes")
    found: dict[str, Any] = {}

    def step() -> None:
        output = operators.mha_gat_n2n_fwd(**given)
        gradients = operators.mha_gat_n2n_bwd(gradient, **given, softmax_scores=output.softmax_scores)
        found.update(gradients._asdict(), output_embedding=output.output_embedding)
        MPI.COMM_WORLD.Barrier()

    def collect() -> dict[str, Any]:
        symbols = {**SYMBOLS, "output_embedding": "num_dst_nodes"}
        return {n: part.collect(found[n], s) if s else found[n] for n, s in symbols.items()}

    return step, collect


def _tell(command: Any) -> None:
    """Tell all other ranks what to do."""
    from mpi4py import MPI

    for rank in range(1, MPI.COMM_WORLD.size):
        MPI.COMM_WORLD.send(command, rank)


def on_ranks(sizes: Mapping[str, int], dtype: str, number: int) -> Call:
    """Attention and its gradients on so many ranks, nodes in blocks of their numbers.

    Raises
    ------
    Unavailable
        If there are not so many, since mpiexec was not there to start them.
    """
    from mpi4py import MPI

    if MPI.COMM_WORLD.size != number:
        raise Unavailable("mpiexec is not installed")
    _tell((dict(sizes), dtype))
    step, collect = _rank(sizes, dtype)

    def call() -> dict[str, Any]:
        _tell("step")
        step()
        whole: dict[str, Any] = {}

        def result(name: str) -> Any:
            if not whole:
                _tell("collect")
                whole.update(collect())
            return whole[name]

        return {name: partial(result, name) for name in (*SYMBOLS, "output_embedding")}

    return call


def main() -> None:
    """Be a rank: rank 0 is a contender's process, the others do what it says."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        worker.main()
        _tell(None)
        return
    actions: dict[str, Callable[[], Any]] = {}
    while True:
        while not comm.Iprobe(0):
            time.sleep(SLEEP)
        command = comm.recv(source=0)
        if command is None:
            return
        if isinstance(command, tuple):
            actions = dict(zip(("step", "collect"), _rank(*command), strict=True))
        else:
            actions[command]()


PROGRAMS = (
    Program(
        name="distributed",
        family="distributed",
        summary="graph attention, forward and backward, on ranks of MPI with one thread each",
        contenders={
            name: Contender(
                partial(on_ranks, number=number),
                f"trigraph.distributed.mha_gat_n2n on {name}",
                ("mpi4py",),
                threads=1,
                ranks=number,
            )
            for name, number in (("1 rank", 1), ("2 ranks", 2))
        },
        sizes=gat.SIZES,
        small={n: v // 20 for n, v in gat.SIZES.items() if n.startswith("num_") and n != "num_heads"},
    ),
)
