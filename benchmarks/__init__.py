"""Measurements: `trigraph bench`, `trigraph qualify`, and records of runs.

Every contender of a benchmark runs in its own process, and contenders are timed alternately (`measure`). Workloads are
derived from the operator table (`workloads`). The module named after a family contains its workloads and peers.
"""
