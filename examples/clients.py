"""
Convert your PyTorch Geometric model
====================================

:func:`trigraph.torch.convert` makes the layers of an existing model use trigraph's operators. Weights, hooks and
optimizers stay as they are. This tutorial converts a graph attention network of PyTorch Geometric, and compares its
results and gradients before and after. :doc:`/clients` lists the other libraries.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch_geometric.nn import GAT
from torch_geometric.utils import erdos_renyi_graph

from trigraph.torch import convert

plt.style.use("tableau-colorblind10")
torch.manual_seed(0)

# %%
# A model and its results
# -----------------------
# The model has two attention layers with four heads. The graph is random and has 500 nodes.

model = GAT(16, 32, num_layers=2, out_channels=8, heads=4)
edge_index = erdos_renyi_graph(500, 0.02)
x = torch.randn(500, 16, requires_grad=True)


def compute_output_and_gradients():
    """Return the output, the gradient of its sum of squares, and the gradient of that gradient's sum of squares."""
    y = model(x, edge_index)
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return {"output": y.detach(), "gradient": first.detach(), "second derivative": second}


before = compute_output_and_gradients()

# %%
# Convert
# -------
# ``convert`` returns a list of the converted layers, and a list of the layers that it left unchanged, with reasons.

conversion = convert(model)
print(conversion)
after = compute_output_and_gradients()

# %%
# Agreement
# ---------
# Both models compute in float32, but add terms in different orders. The picture is a histogram of the differences
# between corresponding elements, in units of the machine epsilon times the largest element.

epsilon = torch.finfo(torch.float32).eps
figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
bins = np.linspace(-3, 3, 61)
for (name, old), style in zip(before.items(), ("-", "--", ":"), strict=True):
    difference = ((after[name] - old) / (epsilon * old.abs().max())).flatten()
    print(f"{name}: at most {difference.abs().max():.1f} epsilons")
    assert difference.abs().max() < 100
    ax.hist(difference, bins, histtype="step", linestyle=style, linewidth=2, label=name, density=True)
ax.set(xlabel="difference (epsilons of the largest element)", ylabel="density of elements")
ax.legend()
plt.show()

# %%
# ``revert`` restores the original layers of the model.

conversion.revert()
