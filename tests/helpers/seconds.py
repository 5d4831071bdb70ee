"""A plugin of pytest: the longest files begin first, and a run by several processes shows its progress by time.

Seconds by file are those of the last whole run with the same marks, which pytest's cache keeps; where there was none,
those of tests/seconds.json for these marks, or else for `make test`; OPTIONS=--write-seconds writes them anew.
"""

import json
import math
import time
from collections import Counter
from pathlib import Path

import pytest

COMMITTED = Path(__file__).parents[1] / "seconds.json"
STEP = 5  # percent from one line of progress to the next
LONGEST = 10  # files that are named at the end


def pytest_addoption(parser):
    parser.addoption("--write-seconds", action="store_true", help=f"write the seconds of each file to {COMMITTED.name}")


def pytest_configure(config):
    # pytest-xdist would begin with the files of most tests, which are short ones.
    config.option.loadscopereorder = False
    cache = getattr(config, "cache", None)  # which people may have switched off
    committed = json.loads(COMMITTED.read_text())
    config.seconds = committed["not slow"] | committed.get(config.option.markexpr or "all", {})
    config.seconds |= cache.get(cache_key(config), {}) if cache else {}
    if config.getoption("dist", "no") != "no" and config.option.verbose <= 0 and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config))


def cache_key(config):
    return f"seconds/{config.option.markexpr or 'all'}"


def file_of(nodeid):
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config, items):
    """Begin with files of which nothing is known, then with the longest: a process that begins one late ends late."""
    items.sort(key=lambda item: -config.seconds.get(file_of(item.nodeid), math.inf))


class Progress:
    """In place of a sign for each test: a line for each share of the time, and each failure as it comes."""

    def __init__(self, config):
        self.config, self.start = config, time.monotonic()
        self.took, self.weights, self.done, self.shown = Counter(), {}, 0.0, 0

    def write(self, text):
        self.config.pluginmanager.get_plugin("terminalreporter").write_line(text)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        """Share the seconds of each file among its tests."""
        number = Counter(map(file_of, ids))
        seconds = {file: max(self.config.seconds.get(file, 1), 0.1) for file in number}
        self.weights = {file: seconds[file] / number[file] / sum(seconds.values()) for file in number}

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report):
        if report.failed:
            return "failed" if report.when == "call" else "error", "", ""
        if report.skipped or report.when == "call":
            return report.outcome, "", ""
        return None

    def pytest_runtest_logreport(self, report):
        file = file_of(report.nodeid)
        self.took[file] += report.duration
        if report.failed:
            self.write(f"failed: {report.nodeid}")
        if report.when == "teardown":
            self.done += 100 * self.weights.get(file, 0)
            if self.done >= self.shown + STEP:
                self.shown = int(self.done // STEP) * STEP
                self.write(f"{self.shown:3} % of the time, {time.monotonic() - self.start:.0f} s, in {file}")

    def pytest_terminal_summary(self):
        self.write("Seconds of the longest files:")
        for file, seconds in self.took.most_common(LONGEST):
            self.write(f"{seconds:8.1f}  {file}")

    def pytest_sessionfinish(self, exitstatus):
        """Remember the seconds of a run of all tests, and of no other."""
        whole = self.config.args == self.config.getini("testpaths") and not self.config.option.keyword
        if not whole or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        seconds = {file: round(self.took[file], 1) for file in sorted(self.took)}
        if getattr(self.config, "cache", None):
            self.config.cache.set(cache_key(self.config), seconds)
        if self.config.option.write_seconds:
            committed = json.loads(COMMITTED.read_text()) | {self.config.option.markexpr or "all": seconds}
            COMMITTED.write_text(json.dumps(committed, indent=1) + "\n")
