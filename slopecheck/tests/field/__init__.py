"""Correct and wrong functions and calculators on which the checks are tested. The modules need torch."""

from field.entry import yield_mistake_verdicts
from field.published import FIELD, TEXTBOOK

__all__ = ["FIELD", "TEXTBOOK", "yield_mistake_verdicts"]
