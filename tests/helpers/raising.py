"""How tests write an error down: its kind and its words, as one text."""

import builtins
import re

import pytest


def raising(text):
    """Expect an error whose text begins so, as "ValueError: f: x has shape (3,)"; `...` stands for any words."""
    kind, _, words = text.partition(": ")
    return pytest.raises(getattr(builtins, kind), match="^" + re.escape(words).replace(r"\.\.\.", ".*"))
