"""The CPU version of the kernels: a header, a runtime and a builder that turn a ``.cu`` file into a shared library."""
