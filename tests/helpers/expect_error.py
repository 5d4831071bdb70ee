"""Helper for expected errors, each written as a string of its type and message."""

import builtins
import re

import pytest


def expect_error(text):
    """Expect an error whose text starts like this: "ValueError: f: x has shape (3,)"; `...` matches any text."""
    kind, _, words = text.partition(": ")
    return pytest.raises(getattr(builtins, kind), match="^" + re.escape(words).replace(r"\.\.\.", ".*"))
