"""Needs a tool that is not there; and cannot even tell its parts in a place that has none."""


def parts(place):
    return ["tool"]


def prefix(part, place):
    raise FileNotFoundError("the tool is not there")


def run(part, place, notes):
    raise AssertionError("never called")
