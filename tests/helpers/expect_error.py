"""Expected errors, each written as one string of type and message."""

import builtins
import re

import pytest


def expect_error(text):
    """Expect an error that begins with this text, such as "ValueError: f: x has shape (3,)"; `...` matches anything."""
    kind, _, words = text.partition(": ")
    return pytest.raises(getattr(builtins, kind), match="^" + re.escape(words).replace(r"\.\.\.", ".*"))
