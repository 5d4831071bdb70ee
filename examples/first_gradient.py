"""
A first gradient and Hessian-vector product
===========================================

``X_fwd`` computes an operator ``X``, ``X_bwd`` its vector-Jacobian product, and ``X_bwd2`` the vector-Jacobian product
of ``X_bwd``. This tutorial defines an energy as a function of the output of graph attention, differentiates it once and
twice, in PyTorch and in NumPy, and checks both derivatives against finite differences.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import trigraph
import trigraph.torch

plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(0)

# %%
# A graph and its features
# ------------------------
# The graph has 20 nodes and 80 edges. :class:`trigraph.CSC` sorts and checks the edges once, and is then used in every
# call. Features have width 8, for two heads of width 4.

edge_index = rng.integers(0, 20, (2, 80))
graph = trigraph.CSC.from_edge_index(edge_index, 20)
x = rng.standard_normal((20, 8))
weights = rng.standard_normal(16)
options = {"num_heads": 2, "activation": "tanh"}

# %%
# In PyTorch
# ----------
# The energy is half the sum of squares of the output. ``create_graph=True`` keeps the gradient differentiable. The
# derivative of its product with a direction ``v`` is the Hessian-vector product.

v = rng.standard_normal(x.shape)
tx, tw, tv = torch.tensor(x, requires_grad=True), torch.tensor(weights), torch.tensor(v)
energy = trigraph.torch.mha_gat_n2n(tx, tx, tw, graph, **options).output_embedding.square().sum() / 2
(gradient,) = torch.autograd.grad(energy, tx, create_graph=True)
(product,) = torch.autograd.grad((gradient * tv).sum(), tx)
print(f"energy {energy.item():.4f}, norm of the gradient {gradient.norm().item():.4f}")

# %%
# In NumPy
# --------
# The same steps work without autograd. The gradient of the energy with respect to the output ``y`` is ``y`` itself, so
# ``y`` is the cotangent for ``_bwd``. Every node is a source and a destination: ``x`` is passed twice, and
# its two gradients are added.


def compute_energy_gradient_and_output(x):
    """Return the energy, its gradient, and the output."""
    y = trigraph.mha_gat_n2n_fwd(x, x, weights, graph, **options).output_embedding
    grads = trigraph.mha_gat_n2n_bwd(y, x, x, weights, graph, **options)
    return (y**2).sum() / 2, grads.src_embedding + grads.dst_embedding, y


# %%
# ``_bwd2`` takes the direction ``v`` as the cotangent of each gradient. It returns the derivative of the output along
# ``v``, and the change of the gradient for a fixed cotangent. The cotangent also changes, by the derivative of the
# output, and ``_bwd`` turns this change into the second part of the Hessian-vector product.


def compute_hessian_vector_product(x, v):
    """Return the Hessian-vector product of the energy."""
    y = compute_energy_gradient_and_output(x)[2]
    second = trigraph.mha_gat_n2n_bwd2(v, v, None, None, y, x, x, weights, graph, **options)
    first = trigraph.mha_gat_n2n_bwd(second.grad_output_embedding, x, x, weights, graph, **options)
    return second.src_embedding + second.dst_embedding + first.src_embedding + first.dst_embedding


value, numpy_gradient, _ = compute_energy_gradient_and_output(x)
numpy_product = compute_hessian_vector_product(x, v)
for name, ours, theirs in (("gradient", numpy_gradient, gradient), ("product", numpy_product, product)):
    difference = np.abs(ours - theirs.detach().numpy()).max() / np.abs(ours).max()
    print(f"{name} in NumPy and PyTorch: relative difference {difference:.1e}")
    assert difference < 1e-14

# %%
# Finite differences
# ------------------
# The error of a central difference falls with the square of the step ``h``, until rounding raises it again as ``1/h``.
# If a derivative is wrong, the curve stays flat. Here both curves fall over four decades.

steps = 10.0 ** np.arange(-7, 0.01, 0.5)
errors = np.empty((len(steps), 2))
for i, h in enumerate(steps):
    (plus, gradient_plus, _), (minus, gradient_minus, _) = (
        compute_energy_gradient_and_output(x + h * v),
        compute_energy_gradient_and_output(x - h * v),
    )
    errors[i, 0] = abs((plus - minus) / (2 * h) / (numpy_gradient * v).sum() - 1)
    difference = (gradient_plus - gradient_minus) / (2 * h) - numpy_product
    errors[i, 1] = np.linalg.norm(difference) / np.linalg.norm(numpy_product)
assert (errors.min(axis=0) < 1e-8).all()

figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.loglog(steps, errors[:, 0], "o-", label="gradient (_bwd)")
ax.loglog(steps, errors[:, 1], "s--", label="Hessian-vector product (_bwd2)")
ax.loglog(steps[5:-1], 3 * steps[5:-1] ** 2, "k:", label="slope 2")
ax.set(xlabel="step h (units of the features)", ylabel="relative error of the difference")
ax.legend()
plt.show()
