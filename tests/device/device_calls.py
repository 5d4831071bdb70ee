"""Helpers for tests on a device: the deadline, child processes, and operator calls."""

import os
import subprocess
import sys
import time

import numpy as np

from trigraph.backends import FUNCTIONS
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.subjects import convert_result_to_mapping

END_VARIABLE = "TRIGRAPH_DEVICE_END"  # environment variable with the time at which all processes must end
DEADLINE_MARGIN = 2.0  # seconds; a process that ends with less time left was ended by the deadline


def seconds_left():
    return float(os.environ[END_VARIABLE]) - time.time()


def run_python(*arguments, prefix=()):
    """Run Python in a child process; return its status and output."""
    command, end = [*prefix, sys.executable, *arguments], max(seconds_left() - 1, 0)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=end, check=False)
    except subprocess.TimeoutExpired:
        time.sleep(60)  # the deadline ends this process, too
        raise
    return done.returncode, done.stdout.decode(errors="replace")


def draw_operator_arguments(op, dtype="float32", variant="regular", seed=0):
    """Return the arguments of one of the verification's cases as writable NumPy arrays."""
    chosen = next(v for v in list_variants(op.definition) if v.name == variant)
    values = build_case(op.definition, chosen, dtype, seed).arguments(op)
    for value in values.values():
        if hasattr(value, "prepare"):  # builds arrays that the first bwd would build
            value.prepare()
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in values.items()}


def compute_fields(op, values, backend, out=None):
    """Call an operator's public function; return its results by field name."""
    return convert_result_to_mapping(op, FUNCTIONS[op.name](**values, backend=backend, out=out))


def list_unequal_fields(target, got, expected):
    """Return the names of fields that are not bitwise identical."""
    pairs = {n: (target.copy_to_host(got[n]), target.copy_to_host(value)) for n, value in expected.items()}
    return [
        n for n, (a, b) in pairs.items() if (a is None) != (b is None) or (b is not None and a.tobytes() != b.tobytes())
    ]


def fill_with_invalid(fields):
    """Fill arrays with invalid values: NaN, or -7 in integer arrays."""
    for array in fields.values():
        if array is not None:
            array.fill(-7 if array.dtype.kind == "i" else np.nan)
