"""Jobs for test_bench.py, in a module that its worker processes can import."""

import os

import numpy as np

from trigraph.benchmarks.programs import ContenderUnavailable


def steady(value, nbytes=8):
    return lambda: {"x": np.full(nbytes // 8, value)}


def unavailable():
    raise ContenderUnavailable("nothing there")


def fail():
    return lambda: 1 / 0


def die():
    os._exit(3)
