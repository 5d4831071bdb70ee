"""
Verify your own operator, wrong first, then right
=================================================

If you have written an operator in PyTorch, :func:`trigraph.verify` compares its results and its first and second
derivatives with a reference in quadruple precision and with finite differences, on graphs that it generates. This
tutorial verifies a weighted sum over in-edges, first with a mistake that does not affect the outputs, then without it.
For functions that are not among the operators, see :doc:`/derivatives`.
"""

import matplotlib.pyplot as plt
import torch

import trigraph

# %%
# A wrong operator
# ----------------
# The function takes tensors, and a graph whose edges are sorted by destination. It detaches the weights. The outputs
# are still correct, but autograd no longer sees the weights.


def weighted_sum(embedding, edge_weight, graph, op, mean_by):
    """Sum the rows of source nodes, times the weights of edges, at destination nodes."""
    offsets, sources, rows = (torch.tensor(a).long() for a in (graph.offsets, graph.indices, graph.edge_ids))
    destinations = torch.arange(graph.num_dst_nodes).repeat_interleave(offsets.diff())
    messages = edge_weight.detach()[rows, None] * embedding[sources]
    return embedding.new_zeros(graph.num_dst_nodes, embedding.shape[1]).index_add(0, destinations, messages)


# %%
# The operator ``agg_weighted_n2n`` computes the same sum. It has more settings; ``where`` selects weighted sums.
# To keep this page short, only float64 is checked.

settings = {"framework": "torch", "where": ["op=sum", "edge_weight=given"], "dtypes": ["float64"]}
try:
    trigraph.verify(weighted_sum, "agg_weighted_n2n", **settings)
except AssertionError as error:
    wrong_result = error.result
    print("\n".join(line[:100] for line in str(error).splitlines()[:6]))
assert {check.field for check in wrong_result.failures if check.kind == "accuracy"} >= {"edge_weight"}

# %%
# The first message names the gradient with respect to ``edge_weight``. The finite differences show the mistake as well.
# A weighted sum is linear in its weights, so a central difference has only rounding errors if the gradient is correct.
# Here the error is the same at every step.


def get_weight_difference_curve(result):
    """Return the steps and errors of the finite differences with respect to the weights, for the first case."""
    checks = [c for c in result.checks if c.operator.endswith("_bwd") and c.field == "edge_weight" and c.curve]
    return zip(*checks[0].curve, strict=True)


# %%
# The right operator
# ------------------
# Without ``detach`` every check passes.


def repaired_sum(embedding, edge_weight, graph, op, mean_by):
    """Sum the rows of source nodes, times the weights of edges, at destination nodes."""
    offsets, sources, rows = (torch.tensor(a).long() for a in (graph.offsets, graph.indices, graph.edge_ids))
    destinations = torch.arange(graph.num_dst_nodes).repeat_interleave(offsets.diff())
    messages = edge_weight[rows, None] * embedding[sources]
    return embedding.new_zeros(graph.num_dst_nodes, embedding.shape[1]).index_add(0, destinations, messages)


repaired_result = trigraph.verify(repaired_sum, "agg_weighted_n2n", **settings)
print(
    f"{len(wrong_result.failures)} of {len(wrong_result.checks)} checks failed, "
    f"then {len(repaired_result.failures)} of {len(repaired_result.checks)}"
)

figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, result, style in (("with detach", wrong_result, "s--"), ("repaired", repaired_result, "o-")):
    steps, errors = get_weight_difference_curve(result)
    ax.loglog(steps, errors, style, label=name)
ax.set(xlabel="step (units of the weights)", ylabel="relative error of the difference")
ax.legend()
plt.show()
