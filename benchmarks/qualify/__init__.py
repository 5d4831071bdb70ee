"""Command `trigraph qualify`, which checks the results of the kernels on a device and measures their speed.

The command (`cli`) runs every part of every stage in its own process until a deadline (`driver`). A part writes each
finding to a file immediately (`part`), so that none is lost if the part crashes or is stopped. Each stage is a module
in `stages`. `place` is the device or, in a rehearsal that tests the command itself, the CPU (gpu-host, NumPy).
"""
