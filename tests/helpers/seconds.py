"""A plugin of pytest: the longest files begin first.

Seconds by file are those of the last whole run with the same marks, which pytest's cache keeps; where there was none,
those of tests/seconds.json for these marks, or else for `make test`; OPTIONS=--write-seconds writes them anew.
"""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

COMMITTED = Path(__file__).parents[1] / "seconds.json"


def pytest_addoption(parser):
    parser.addoption("--write-seconds", action="store_true", help=f"write the seconds of each file to {COMMITTED.name}")


def pytest_configure(config):
    # pytest-xdist would begin with the files of most tests, which are short ones.
    config.option.loadscopereorder = False
    cache = getattr(config, "cache", None)  # which people may have switched off
    committed = json.loads(COMMITTED.read_text())
    config.seconds = committed["not slow"] | committed.get(config.option.markexpr or "all", {})
    config.seconds |= cache.get(cache_key(config), {}) if cache else {}
    if not hasattr(config, "workerinput"):  # of pytest-xdist, whose reports come back to the process that starts it
        config.pluginmanager.register(Seconds(config))


def cache_key(config):
    return f"seconds/{config.option.markexpr or 'all'}"


def file_of(nodeid):
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config, items):
    """Begin with files of which nothing is known, then with the longest: a process that begins one late ends late."""
    items.sort(key=lambda item: -config.seconds.get(file_of(item.nodeid), math.inf))


class Seconds:
    """The seconds that each file took, with what pytest does before and after it runs a test."""

    def __init__(self, config):
        self.config, self.took = config, Counter()

    def pytest_runtest_logreport(self, report):
        self.took[file_of(report.nodeid)] += report.duration

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
