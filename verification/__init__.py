"""Finite differences, cross-checks between panels, golden vectors, and the report: what `trigraph verify` runs."""
