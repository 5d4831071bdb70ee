"""Checks run by `trigraph verify` (finite differences, comparisons of backends, golden vectors), and their report."""
