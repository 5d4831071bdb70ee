"""What `trigraph qualify` runs: it shows whether a device computes right with these kernels, and how fast.

The command (`cli`) starts a process for every part of every stage and keeps to a deadline (`driver`); a part notes what
it finds as it goes (`notes`), so that nothing is lost when it crashes or is ended. Each stage is a module in `stages`.
`place` is the device, or in a rehearsal the CPU: gpu-host and NumPy, for tests of the command itself.
"""
