"""Stages for the tests of `trigraph qualify`."""
