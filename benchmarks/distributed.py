"""Graph attention on a graph that is divided among ranks of MPI: what a second rank gains.

A contender starts its ranks with mpiexec, each with one thread, and tells them over a pipe when to make a step. Between
steps they sleep. The memory of ranks is not that of the process that starts them, and is not measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.benchmarks import gat
from trigraph.benchmarks.calls import Call, Unavailable
from trigraph.benchmarks.measure import THREAD_VARIABLES
from trigraph.benchmarks.programs import Contender, Program
from trigraph.benchmarks.workloads import make_case

__all__ = ["PROGRAMS"]

SLEEP = 1e-4  # seconds: at most so much is added to a step
END = 60.0  # seconds for the ranks to end


class _Ranks:
    """Ranks that wait for commands; they end with this object."""

    def __init__(self, command: list[str]) -> None:
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        weakref.finalize(self, _end, self._process)

    def ask(self, command: str) -> None:
        """Have a command carried out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError("a rank has ended; its error is on the standard error")

    def results(self) -> dict[str, np.ndarray]:
        """Return what the last step returned, of all ranks together."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.npz"
            self.ask(str(path))
            with np.load(path) as archive:
                return dict(archive)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(END)
    assert process.stdout is not None
    process.stdout.close()


def on_ranks(sizes: Mapping[str, int], dtype: str, number: int) -> Call:
    """Attention and its gradients on so many ranks, nodes in blocks of their numbers."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=search)
    if mpiexec is None:
        raise Unavailable("mpiexec is not installed")
    arguments = [json.dumps(dict(sizes)), dtype]
    ranks = _Ranks([mpiexec, "-n", str(number), sys.executable, "-m", "trigraph.benchmarks.distributed", *arguments])

    def call() -> dict[str, Any]:
        ranks.ask("step")
        return {name: lambda name=name: ranks.results()[name] for name in ("output_embedding", *gat.GRADIENTS)}

    return call


def main(sizes: Mapping[str, int], dtype: str) -> None:
    """Be a rank. Rank 0 reads a command from each line, ``step`` or where to put the results, and answers each."""
    from mpi4py import MPI

    from trigraph import distributed

    operators: Any = distributed  # made of the operator table
    comm = MPI.COMM_WORLD
    case = make_case(gat.WORKLOADS[0], sizes, np.dtype(dtype))
    part = distributed.partition(case.graph, comm)
    symbols = dict(zip(gat.GRADIENTS, ("num_src_nodes", "num_dst_nodes", None), strict=True))
    given: dict[str, Any] = {n: part.take(case[n], s) if s else case[n] for n, s in symbols.items()}
    given |= {"graph": part, "num_heads": sizes["num_heads"], "negative_slope": gat.SLOPE}
    gradient = part.take(case["grad_output_embedding"], "num_dst_nodes")
    found: dict[str, Any] = {}
    while command := _command(comm):
        if command == "step":
            output = operators.mha_gat_n2n_fwd(**given)
            scores = output.softmax_scores
            gradients = operators.mha_gat_n2n_bwd(gradient, **given, softmax_scores=scores)
            found = {"output_embedding": output.output_embedding, **gradients._asdict()}
            comm.Barrier()
        else:
            whole: dict[str, Any] = {n: part.collect(found[n], s) if s else found[n] for n, s in symbols.items()}
            whole["output_embedding"] = part.collect(found["output_embedding"], "num_dst_nodes")
            if comm.rank == 0:
                np.savez(command, **whole)
        if comm.rank == 0:
            print("done", flush=True)


def _command(comm: Any) -> str:
    """Return the next command, on all ranks, empty at the end; MPI would keep the processors busy meanwhile."""
    if comm.rank == 0:
        command = sys.stdin.readline().strip()
        for rank in range(1, comm.size):
            comm.send(command, rank)
        return command
    while not comm.Iprobe(0):
        time.sleep(SLEEP)
    return str(comm.recv(source=0))


PROGRAMS = (
    Program(
        name="distributed",
        family="distributed",
        summary="graph attention, forward and backward, on ranks of MPI with one thread each",
        contenders={
            name: Contender(
                partial(on_ranks, number=number), f"trigraph.distributed.mha_gat_n2n on {name}", ("mpi4py",)
            )
            for name, number in (("1 rank", 1), ("2 ranks", 2))
        },
        sizes=gat.SIZES,
        small={n: v // 20 for n, v in gat.SIZES.items() if n.startswith("num_") and n != "num_heads"},
    ),
)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
