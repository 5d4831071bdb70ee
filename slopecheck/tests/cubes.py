"""The cube as a NumPy function, its derivatives to third order, and a gradient with one wrong element."""

import numpy as np


def list_failure_notes(result, kind):
    """Return the notes of the failed checks of one kind."""
    return [check.note for check in result.failures if check.kind == kind]


def cube(x):
    return x**3


def gradient(x, g):
    return (3 * x[0] ** 2 * g[0],)


def second_derivatives(x, g, u):
    return (6 * x[0] * g[0] * u[0],), (3 * x[0] ** 2 * u[0],)


def third_derivatives(x, g, u, v, h):
    of_x = 6 * g[0] * u[0] * v[0] + 6 * x[0] * h[0] * u[0]
    return (of_x,), (6 * x[0] * u[0] * v[0],), (6 * x[0] * g[0] * v[0] + 3 * x[0] ** 2 * h[0],)


X = np.random.default_rng(0).standard_normal((3, 2))


def gradient_with_wrong_element(x, g):
    (changed,) = gradient(x, g)
    changed[..., -1:].flat[-1] *= 1 + 1e-5
    return (changed,)
