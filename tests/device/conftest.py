"""Configuration of the tests on a CUDA device: options, test order, deadline, and the record of results.

``python -m pytest tests/device -m device -n 8 --maxschedchunk 1 --device-seconds 530 --record record.json``

Each pytest-xdist process has its own CUDA context. If a kernel breaks the context, the process exits, and the remaining
tests run in a new process.
"""

import faulthandler
import json
import os
import time
from pathlib import Path

import pytest
from deadline import DEADLINE_MARGIN, END_VARIABLE, seconds_left

from trigraph.backends import explain_unavailable
from trigraph.benchmarks.qualify.place import Device, Rehearsal
from trigraph.environment import collect_environment
from trigraph.gpu.instances import INSTANCES

HERE = Path(__file__).parent
ORDER = (
    "environment",
    "verify",
    "torch",
    "captured",
    "checks",
    "potentials",
    "sanitizers",
)  # most important first, because time may run out
RESERVED_SECONDS = 5.0  # seconds reserved for pytest to finish
MAX_NOTE_LENGTH = 3000  # maximum length of a note


def pytest_addoption(parser):
    group = parser.getgroup("device")
    group.addoption("--rehearse", action="store_true", help="Run on the CPU with gpu-host, to test the tests.")
    group.addoption("--device-seconds", type=float, default=3600.0, help="End after this many seconds.")
    group.addoption("--record", metavar="FILE", help="Write the tests that passed, failed and did not run, as JSON.")


def requests_device_tests(config):
    return config.getoption("rehearse", False) or "device" in config.option.markexpr


def pytest_ignore_collect(config):
    """Exclude these tests from `make test`."""
    return None if requests_device_tests(config) else True


def pytest_configure(config):
    if not requests_device_tests(config):
        return
    config.addinivalue_line("markers", "device: needs a CUDA device")
    config.addinivalue_line("filterwarnings", "default")  # do not turn warnings of torch and CuPy into errors
    os.environ.setdefault(
        END_VARIABLE, str(time.time() + config.getoption("device_seconds", 3600.0) - RESERVED_SECONDS)
    )
    if config.getoption("record", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DeviceTestRecorder(config))


def pytest_collection_modifyitems(config, items):
    module_names = {item: item.path.stem.removeprefix("test_device_") for item in items if item.path.parent == HERE}
    reason = "" if config.getoption("rehearse", False) else explain_unavailable("gpu")
    for item in module_names:
        item.add_marker("device")
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: ORDER.index(module_names[item]) if item in module_names else -1)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem():
    """End the run if a test process was ended by the deadline rather than by a crash."""
    if seconds_left() < DEADLINE_MARGIN:
        pytest.exit("no time is left; the record lists the tests that did not run")


@pytest.fixture(scope="session")
def target(request):
    """Return the CUDA device, or the CPU in a rehearsal."""
    return Rehearsal() if request.config.getoption("rehearse") else Device()


@pytest.fixture(scope="session")
def torch(target):
    """Return torch, or skip the test if torch finds no device."""
    module = pytest.importorskip("torch")
    if not (target.rehearsal or module.cuda.is_available()):
        pytest.skip(f"torch {module.__version__} finds no device")
    return module


@pytest.fixture(autouse=True)
def _enforce_deadline(target):
    """End the process at the deadline, or after a test that breaks the CUDA context."""
    faulthandler.dump_traceback_later(max(seconds_left(), 0.01), exit=True)  # ends the process even if the device hangs
    yield
    faulthandler.cancel_dump_traceback_later()
    try:
        target.synchronize()
    except Exception:
        os._exit(1)


class DeviceTestRecorder:
    """Writes all results after each report, so that an interrupted run loses nothing."""

    def __init__(self, config):
        self.path, self.begun = Path(config.getoption("record")).resolve(), time.time()
        self.parts = bool(config.option.keyword) or any(Path(a).resolve() != HERE for a in config.args)
        self.tests = {}
        self.header = {
            "format": 2,
            "rehearsal": config.getoption("rehearse"),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "kit": os.environ.get("TRIGRAPH_KIT", ""),  # commit of the tested wheel, if known
            "environment": collect_environment(),
        }

    def verdict(self):
        """Return the verdict of the run; "passed" requires that `trigraph verify` of every family passed."""
        outcomes = {test["outcome"] for test in self.tests.values()}
        passed = "".join(name for name, test in self.tests.items() if test["outcome"] == "passed")
        if "failed" in outcomes:
            return "failed"
        if not all(f"::test_verify[{family}]" in passed for family in INSTANCES):
            return "little was checked"
        return "passed in part" if self.parts or outcomes != {"passed"} else "passed"

    def write_record(self):
        summary = {"verdict": self.verdict(), "seconds": time.time() - self.begun}
        temporary = self.path.with_suffix(".part")  # written first, then renamed atomically
        text = json.dumps({**summary, **self.header, "tests": self.tests}, indent=1, default=repr)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.path)

    def register_tests(self, names):
        for name in names:
            self.tests.setdefault(name, {"outcome": "not run", "seconds": 0.0})

    def pytest_collection_finish(self, session):
        self.register_tests(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self.register_tests(ids)

    def pytest_runtest_logreport(self, report):
        test = self.tests[report.nodeid]
        test["seconds"] += report.duration
        test.update(report.user_properties)
        if report.when == "call" or not report.passed:
            test["outcome"] = "failed" if test["outcome"] == "failed" else report.outcome
            note = report.longrepr[2] if report.skipped else report.longreprtext
            test["note"] = (test.get("note", "") + note)[-MAX_NOTE_LENGTH:]
        self.write_record()

    def pytest_collectreport(self, report):
        if report.failed:
            self.tests[report.nodeid] = {
                "outcome": "failed",
                "seconds": 0.0,
                "note": report.longreprtext[-MAX_NOTE_LENGTH:],
            }

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(f"{self.verdict()}: {self.path}")
