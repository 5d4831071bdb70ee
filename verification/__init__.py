"""Checks run by `trigraph verify` (finite differences, comparisons of panels, golden vectors), and their report."""
