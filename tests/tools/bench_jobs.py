"""Jobs for test_bench.py, in a module that its worker processes can import."""

import os

import numpy as np


def make_constant_job(value, nbytes=8):
    return lambda: {"x": np.full(nbytes // 8, value)}


def raise_unavailable():
    raise ModuleNotFoundError("nothing there")


def make_failing_job():
    return lambda: 1 / 0


def exit_with_status_3():
    os._exit(3)
