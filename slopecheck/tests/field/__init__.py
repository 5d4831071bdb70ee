"""Correct and wrong functions and calculators on which the checks are tested. The modules need torch."""

from field.entry import judge_mistakes
from field.published import FIELD, TEXTBOOK

__all__ = ["FIELD", "TEXTBOOK", "judge_mistakes"]
