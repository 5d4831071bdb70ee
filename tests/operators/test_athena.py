"""Tests of athena's graph neural operator: a Fortran program that uses athena's arguments and packed weights."""

import math
from pathlib import Path

import numpy as np
import programs
import pytest
from click.testing import CliRunner
from table_calls import assert_accurate

import trigraph
from trigraph import cli
from trigraph.checks import evaluate_shape, find_symbol_sizes
from trigraph.table import OPERATORS

PROGRAM = Path(__file__).with_name("athena_program.f90")
ARRAYS = ("adj_ia", "adj_ja", "coords", "params", "features", "up_kernel", "up_agg")
# Operators whose results the program writes, in order.
OPERATOR_NAMES = [f"gno_{name}_{order}" for name in ("kernel", "aggregate", "message") for order in ("fwd", "bwd")]


@pytest.fixture(scope="module")
def athena_program(tmp_path_factory):
    """Build the program with gfortran's run-time checks; return its path."""
    folder = tmp_path_factory.mktemp("athena")
    flags = CliRunner().invoke(cli.main, ["config", "--include", "--libs"]).output.split()
    options = ["-O0", "-fcheck=all", "-w", f"-J{folder}"]
    programs.run_command("gfortran", *options, PROGRAM, *flags, "-o", folder / "program")
    return folder / "program"


def run_athena_program(program, folder, case, status=0):
    """Run the program on a case with arrays in Fortran's shapes; return the finished process."""
    with open(folder / "case", "wb") as file:
        file.write(np.asarray(case["dims"][:4], np.int32).tobytes())
        for name in ARRAYS:
            array = case[name].reshape(len(case[name]), -1)
            file.write(np.asarray(array.shape, np.int32).tobytes() + array.tobytes(order="F"))
    return programs.run_command(program, folder / "case", folder / "results", status=status)


def convert_case_to_csc(case):
    senders, edges = case["adj_ja"] - 1
    return trigraph.CSC(case["adj_ia"] - 1, senders, case["features"].shape[1], edges, case["coords"].shape[1])


def draw_case(d, hidden, f_in, f_out, degrees, num_e, edges):
    """Draw a case whose hidden layer is exact in float32 (small fractions) and avoids the kink of relu (odd biases)."""
    rng, f, num_v = np.random.default_rng(7), f_in * f_out, len(degrees)
    adj_ia = 1 + np.concatenate([[0], np.cumsum(degrees)])
    senders = rng.integers(1, num_v + 1, adj_ia[-1] - 1)
    params = rng.standard_normal(hidden * (d + 1 + f) + f)
    params[: hidden * d] = rng.integers(-8, 9, hidden * d) / 8
    params[hidden * d : hidden * (d + 1)] = (2 * rng.integers(-40, 40, hidden) + 1) / 128
    case = {"params": params, "coords": rng.integers(-8, 9, (d, num_e)) / 8}
    shapes = {"features": (f_in, num_v), "up_kernel": (f, num_e), "up_agg": (f_out, num_v)}
    case |= {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    case = {name: array.astype(np.float32) for name, array in case.items()}
    adjacency = {"adj_ia": adj_ia, "adj_ja": np.stack([senders, edges(rng, len(senders))])}
    return case | {n: a.astype(np.int32) for n, a in adjacency.items()} | {"dims": (d, hidden, f_in, f_out)}


def draw_permutation(rng, n):
    return 1 + rng.permutation(n)


CASES = {
    # Some vertices, including the first and the last, have no in-edges; one has more in-edges than a partial sum
    # has terms.
    "permuted edges": draw_case(3, 6, 2, 5, [0, 3, 0, 150, 1, 2, 0, 0], 156, draw_permutation),
    "shared and unused edges": draw_case(2, 9, 3, 2, [4] * 5, 11, lambda rng, n: rng.integers(1, 10, n)),
    "isolated vertices": draw_case(2, 4, 3, 2, [0] * 5, 3, draw_permutation),
    "no edges": draw_case(2, 4, 3, 2, [0] * 5, 0, draw_permutation),
    "one of each": draw_case(1, 1, 1, 1, [1], 1, draw_permutation),
}


@pytest.mark.parametrize("name", CASES)
def test_athena_program_agrees_with_judge(athena_program, tmp_path, name):
    case = CASES[name]
    run_athena_program(athena_program, tmp_path, case)
    numbers = np.fromfile(tmp_path / "results", np.float32)
    names = {"grad_kernel": "up_kernel", "grad_message": "up_agg"} | {n: n for n in ("features", "coords", "params")}
    values = {n: case[name].T.copy() for n, name in names.items()}
    values |= {"graph": convert_case_to_csc(case), "f_in": case["dims"][2], "f_out": case["dims"][3]}
    for op in map(OPERATORS.get, OPERATOR_NAMES):
        arguments, got = {n: values[n] for n in op.parameter_names}, {}
        sizes = find_symbol_sizes(op, arguments)
        for field in op.fields:
            shape = evaluate_shape(field, sizes)
            got[field.name], numbers = numbers[: math.prod(shape)].reshape(shape), numbers[math.prod(shape) :]
        assert_accurate(op, arguments, got, chunked=True)
        values.setdefault("kernel", got.get("kernel"))  # the program uses its own kernel in later sums
    assert not len(numbers)


def change_case_element(name, position, value):
    array = CASES["permuted edges"][name].copy()
    array[position] = value
    return {name: array}


def double_array_length(name):
    return {name: np.repeat(CASES["permuted edges"][name], 2, axis=0)}


REFUSED = {
    "gno_kernel_eval: coords has shape (6, 156); expected (coord_dim, num_edges) = (3, 156)": double_array_length(
        "coords"
    ),
    "gno_kernel_eval: kernel_params has shape (188, 1); expected (kernel_hidden*(coord_dim + 1 + f_out*f_in) + "
    "f_out*f_in, 1) = (94, 1)": double_array_length("params"),
    "gno_aggregate: output has shape (10, 8); expected (f_out, num_v) = (5, 8)": double_array_length("up_agg"),
    "gno_aggregate: adj_ia has shape (18); expected (num_v + 1) = (9)": double_array_length("adj_ia"),
    "gno_aggregate: adj_ia(1) is 0; expected 1": change_case_element("adj_ia", 0, 0),
    "gno_aggregate: adj_ia decreases; expected nondecreasing offsets": change_case_element("adj_ia", 3, 200),
    "gno_aggregate: adj_ja has shape (2, 156); expected (2, adj_ia(num_v + 1) - 1) = (2, 157)": change_case_element(
        "adj_ia", 8, 158
    ),
    "gno_aggregate: adj_ja(1, :) has a neighbour outside 1 to num_v = 8": change_case_element("adj_ja", (0, 5), 9),
    "gno_aggregate: adj_ja(2, :) has an edge outside 1 to num_edges = 156": change_case_element("adj_ja", (1, 155), 0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_athena_arguments_stop_with_message(athena_program, tmp_path, message):
    done = run_athena_program(athena_program, tmp_path, CASES["permuted edges"] | REFUSED[message], status=1)
    assert f"ERROR STOP {message}\n" in done.stderr
