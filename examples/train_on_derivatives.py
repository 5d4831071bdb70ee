"""Fit a derivative: a loss on the gradient of an energy needs second derivatives, which `_bwd2` gives exactly.

The energy is the sum of all messages of a graph neural operator; its gradient in the edges' coordinates is fitted to a
target by gradient descent on the network's parameters.
"""

import numpy as np

import trigraph

rng = np.random.default_rng(0)
F_IN, F_OUT, HIDDEN, NODES, EDGES = 3, 2, 16, 20, 120

graph = trigraph.CSC.from_coo(rng.integers(0, NODES, EDGES), rng.integers(0, NODES, EDGES), NODES, NODES)
features = rng.standard_normal((NODES, F_IN))
coords = rng.standard_normal((EDGES, 3))
target = 0.1 * rng.standard_normal((EDGES, 3))
shapes = [(HIDDEN, 3), (HIDDEN,), (F_IN * F_OUT, HIDDEN), (F_IN * F_OUT,)]
params = trigraph.pack_gno_params(*(0.3 * rng.standard_normal(shape) for shape in shapes))
ones = np.ones((NODES, F_OUT))  # gradient of the energy in the messages


def loss_and_gradient(params):
    """Loss = |dE/dcoords - target|^2 / 2, and its gradient in the parameters."""
    arrays = (features, coords, params, graph, F_IN, F_OUT)
    residual = trigraph.gno_message_bwd(ones, *arrays, wrt="coords").coords - target
    # The cotangent of _bwd's coords is the residual; the cotangents of its other fields are zero.
    second = trigraph.gno_message_bwd2(None, residual, None, ones, *arrays, wrt="params")
    return 0.5 * np.sum(residual**2), second.params


first, gradient = loss_and_gradient(params)
direction, step = rng.standard_normal(params.size), 1e-6
after, before = (loss_and_gradient(params + h * direction)[0] for h in (step, -step))
difference = (after - before) / (2 * step)
error = abs(difference - gradient @ direction) / abs(difference)
print(f"gradient against a central difference: relative error {error:.1e}")

loss = first
for _ in range(100):
    loss, gradient = loss_and_gradient(params)
    params -= 1e-3 * gradient
print(f"loss: {first:.3f} before, {loss:.3f} after 100 steps")
assert error < 1e-7
assert loss < first / 2
