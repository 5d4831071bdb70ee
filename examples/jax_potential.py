"""A small potential in JAX with forces and a Hessian, and a layer of a graph neural operator.

Run ``python examples/jax_potential.py``; it needs ``pip install 'trigraph[jax]'``. The potential uses DimeNet++'s sum
over triplets: `radial_basis` for the distances, and `agg_edge_to_edge` for the vectors and embeddings. As in jax-md, it
is a function of positions. ``-jax.grad`` computes its forces and ``jax.hessian`` its Hessian.
"""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
import trigraph.jax as tj
from trigraph import CSC, EdgeGraph

S, R, C, M, CUTOFF = 4, 3, 5, 4, 3.0


def draw_potential_weights(key):
    """Return random weights of the potential."""
    k = jax.random.split(key, 3)
    return {
        "freq": jnp.pi * jnp.arange(1.0, R + 1),
        "embed": jax.random.normal(k[0], (R, C)),
        "triplets": jax.random.normal(k[1], (S * R + C, M)) / 3,
        "out": jax.random.normal(k[2], (C,)),
    }


def compute_energy(positions, params, graph):
    """Return the energy: the sum over all edges of a network of each edge's embedding and its sum over triplets."""
    vec = positions[graph.src] - positions[graph.dst]
    basis = tj.radial_basis(jnp.sqrt((vec * vec).sum(1)) / CUTOFF, params["freq"], S)
    x = jnp.tanh(basis.rbf @ params["embed"])
    x = x + tj.agg_edge_to_edge(vec, basis.sbf_rad, x, params["triplets"], graph, S, R)
    return (jnp.tanh(x) @ params["out"]).sum()


def apply_gno_layer(params, features, coords, graph, width):
    """Return the output of a graph neural operator layer: kernel messages plus a linear term."""
    message = tj.gno_message(features, coords, params["kernel"], graph, features.shape[1], width)
    return jax.nn.gelu(message + features @ params["linear"])


def check_potential_derivatives():
    """Check forces and a Hessian."""
    rng = np.random.default_rng(0)
    positions = np.array([[i, j, k] for i in range(2) for j in range(2) for k in range(2)]) * 1.5
    positions += 0.1 * rng.normal(size=positions.shape)
    graph = EdgeGraph.from_positions(positions, CUTOFF).graph
    params, positions = draw_potential_weights(jax.random.key(0)), jnp.asarray(positions)

    forces = jax.jit(lambda x, p, g: -jax.grad(compute_energy)(x, p, g))  # a graph (`g`) is a pytree, as jit requires
    f = forces(positions, params, graph)
    hessian = jax.jit(jax.hessian(compute_energy))(positions, params, graph).reshape(f.size, f.size)
    step = 1e-5 * jnp.asarray(rng.normal(size=f.shape))
    change = forces(positions + step, params, graph) - forces(positions - step, params, graph)
    error = jnp.abs(change.ravel() / 2 + hessian @ step.ravel()).max() / jnp.abs(change).max()
    print(f"sum of forces {jnp.abs(f.sum(0)).max():.1e}, Hessian against differences {error:.1e}")
    assert jnp.abs(f.sum(0)).max() < 1e-12
    assert error < 1e-5
    assert jnp.allclose(hessian, hessian.T, atol=1e-10)


def fit_operator_layer():
    """Fit a layer to a function of the neighbours by gradient descent in one compiled loop."""
    rng = np.random.default_rng(1)
    points, width, hidden = rng.uniform(size=(30, 2)), 3, 8
    src, dst = np.nonzero(((points[:, None] - points) ** 2).sum(2) < 0.1)
    graph = CSC.from_coo(src, dst, 30, 30)
    features, coords = jnp.asarray(rng.normal(size=(30, 2))), jnp.asarray(points[src] - points[dst])
    target = jax.ops.segment_sum(features[src] * coords[:, :1], dst, 30) @ jnp.ones((2, width))
    num_params = hidden * (2 + 1 + 2 * width) + 2 * width
    params = {"kernel": jnp.asarray(rng.normal(size=num_params)) / 4, "linear": jnp.zeros((2, width))}

    def compute_mean_squared_error(p):
        return ((apply_gno_layer(p, features, coords, graph, width) - target) ** 2).mean()

    def take_gradient_step(p, _):
        value, gradient = jax.value_and_grad(compute_mean_squared_error)(p)
        return jax.tree.map(lambda w, g: w - 0.02 * g, p, gradient), value

    _, losses = jax.jit(lambda p: jax.lax.scan(take_gradient_step, p, None, length=200))(params)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert losses[-1] < losses[0] / 2


if __name__ == "__main__":
    check_potential_derivatives()
    fit_operator_layer()
