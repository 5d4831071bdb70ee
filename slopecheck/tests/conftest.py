"""Limit tests to one thread each, since there are as many test processes as processors."""

import os

from signals import default_signal_handlers  # noqa: F401

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
