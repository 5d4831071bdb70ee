"""`trigraph verify` of every family on the device, and through torch of the third derivatives of every operator."""

import os
import re

import pytest
from device_calls import run_python

from trigraph.gpu.instances import INSTANCES
from trigraph.table import THIRD

SMALLEST = "basis_embedding_radial_fwd"
JOBS = max(1, (os.cpu_count() or 1) // 4)  # other tests are under way
PRINTED = 6000  # last characters of a run that are kept: the largest error of each operator, and what failed


def verify(record_property, *options):
    """Assert that a run has a result and no failures."""
    status, printed = run_python("-m", "trigraph", "verify", *options)
    record_property("printed", printed[-PRINTED:])
    assert re.search(r"^[1-9]\d* checks passed, 0 failed", printed, re.MULTILINE), printed[-PRINTED:]
    assert status == 0


@pytest.mark.parametrize("family", INSTANCES)
def test_verify(place, family, record_property):
    which = (SMALLEST, "--dtype", "float32") if place.rehearsal else (family, "--jobs", str(JOBS))
    verify(record_property, "--operator", *which, "--backend", place.backend)


@pytest.mark.parametrize("name", sorted(THIRD, key=lambda name: name != "mha_gat_n2n_bwd3"))  # the longest is first
def test_third_orders(place, torch, name, record_property):
    device = "cpu" if place.rehearsal else "cuda:0"
    verify(record_property, "--framework", "torch", "--device", device, "--operator", name)
