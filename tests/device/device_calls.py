"""Helpers for tests on a device: the deadline, programs, and calls of operators."""

import os
import subprocess
import sys
import time

import numpy as np

from trigraph.backends import FUNCTIONS
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.subjects import name_fields_of_result

END = "TRIGRAPH_DEVICE_END"  # environment variable: the time at which all processes of the run must end
LEAST = 2.0  # seconds; the deadline ended a process that ended this close to it


def seconds_left():
    return float(os.environ[END]) - time.time()


def run_python(*arguments, prefix=()):
    """Run Python; return its status and output."""
    command, end = [*prefix, sys.executable, *arguments], max(seconds_left() - 1, 0)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=end, check=False)
    except subprocess.TimeoutExpired:
        time.sleep(60)  # wait until the deadline also ends this process
        raise
    return done.returncode, done.stdout.decode(errors="replace")


def draw_operator_arguments(op, dtype="float32", variant="regular", seed=0):
    """Return arguments of an operator as drawn by the verification, for the NumPy backends, with writable arrays."""
    chosen = next(v for v in list_variants(op.definition) if v.name == variant)
    values = build_case(op.definition, chosen, dtype, seed).arguments(op)
    for value in values.values():
        if hasattr(value, "prepare"):  # builds the arrays that a graph otherwise builds at the first backward
            value.prepare()
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in values.items()}


def compute_fields(op, values, backend, out=None):
    """Return the results of an operator's public function, by field."""
    return name_fields_of_result(op, FUNCTIONS[op.name](**values, backend=backend, out=out))


def list_unequal_fields(place, got, right):
    """Return the names of fields that are not bitwise identical."""
    pairs = {n: (place.hosted(got[n]), place.hosted(value)) for n, value in right.items()}
    return [
        n for n, (a, b) in pairs.items() if (a is None) != (b is None) or (b is not None and a.tobytes() != b.tobytes())
    ]


def spoil_arrays(fields):
    """Fill arrays with values that no operator returns."""
    for array in fields.values():
        if array is not None:
            array.fill(-7 if array.dtype.kind == "i" else np.nan)
