"""Helpers for tests that build a library from mutated C or C++ sources, with which the tests of a file must fail."""

import subprocess
import sys

RUN_TESTS = """import sys
from pathlib import Path
import trigraph
{use_library}
import pytest
ignored = "ignore::pytest.PytestAssertRewriteWarning"  # trigraph is imported before
options = ["-q", "-x", "-W", ignored, "-p", "no:cacheprovider", "-m", "not slow"]
sys.exit(pytest.main([*options, "-k", sys.argv[2], sys.argv[3]]))
"""


def write_mutated_sources(paths, folder, mutation):
    """Copy sources to a folder, with each occurrence of the first text of `mutation` replaced by the second."""
    right, wrong = mutation
    texts = {path.name: path.read_text() for path in paths}
    assert any(right in text for text in texts.values())
    for name, text in texts.items():
        (folder / name).write_text(text.replace(right, wrong))


def assert_tests_detect_mutation(library, use_library, file, selection, is_wrong):
    """Assert that the selected tests of a file fail or crash with a mutated library, and pass with a correct one.

    `use_library` is a Python statement that makes trigraph use the library ``sys.argv[1]``.
    """
    program = RUN_TESTS.format(use_library=use_library)
    done = subprocess.run([sys.executable, "-c", program, library, selection, file], check=False)
    assert done.returncode not in (2, 4, 5)  # these codes mean that pytest ran no test
    assert (done.returncode != 0) == is_wrong
