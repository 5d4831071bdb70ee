"""Stages of a qualification, one module each."""
