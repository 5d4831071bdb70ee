"""Tests that `trigraph verify` passes on the device, for every family and, through torch, for third derivatives."""

import os
import re

import pytest
from deadline import run_python

from trigraph.gpu.instances import INSTANCES
from trigraph.table import THIRD

REHEARSED_OPERATOR = "basis_embedding_radial_fwd"
JOBS = max(1, (os.cpu_count() or 1) // 4)  # leaves processors for other tests
OUTPUT_LENGTH = 6000  # number of characters recorded from the end of the output, which lists errors and failures


def assert_verify_passes(record_property, *options):
    """Assert that `trigraph verify` ran at least one check, and that none failed."""
    status, printed = run_python("-m", "trigraph", "verify", *options)
    record_property("printed", printed[-OUTPUT_LENGTH:])
    assert re.search(r"^[1-9]\d* checks passed, 0 failed", printed, re.MULTILINE), printed[-OUTPUT_LENGTH:]
    assert status == 0


@pytest.mark.parametrize("family", INSTANCES)
def test_verify(target, family, record_property):
    selection = (REHEARSED_OPERATOR, "--dtype", "float32") if target.rehearsal else (family, "--jobs", str(JOBS))
    assert_verify_passes(record_property, "--operator", *selection, "--backend", target.backend)


@pytest.mark.parametrize("name", sorted(THIRD, key=lambda name: name != "mha_gat_n2n_bwd3"))  # slowest first
def test_third_derivatives_through_torch_pass_verify(target, torch, name, record_property):
    device = "cpu" if target.rehearsal else "cuda:0"
    assert_verify_passes(record_property, "--framework", "torch", "--device", device, "--operator", name)
