"""Measurements: `trigraph bench`, `trigraph qualify`, and records of runs.

Every contender of a benchmark has its own process; its timings alternate with the others' (`measure`, `worker`).
Workloads follow from the operator table (`workloads`). Each family adds its workloads and peers in a file of its name.
"""
