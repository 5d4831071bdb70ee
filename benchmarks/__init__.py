"""Measurements: `trigraph bench`, `trigraph qualify`, and records of runs.

Every contender of a benchmark runs in its own process, and the timings of contenders alternate (`measure`). Workloads
follow from the operator table (`workloads`). The module named after a family contains its workloads and peers.
"""
