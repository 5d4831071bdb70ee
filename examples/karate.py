"""
Graph attention on the karate club
==================================

A club of 34 members splits in two. An edge of the graph joins two members who meet, and its feature is the number of
contexts in which they meet. Three layers of graph attention are trained on the sides of only two members, the
instructor (0) and the officer (33), and predict the sides of the other 32.
"""

import matplotlib.pyplot as plt
import networkx
import torch
from torch.nn.functional import cross_entropy, elu

import trigraph
from trigraph.torch.nn import GATConv, add_self_loops

STEPS = 100
KNOWN = [0, 33]
torch.manual_seed(0)

# %%
# The club
# --------
# An edge of the club becomes two edges of the graph, one for each direction, and every member gets a self-loop. The
# graph is built once for all layers and steps. The only feature of a member is its one-hot encoded number.

club = networkx.karate_club_graph()
ends = torch.tensor(list(club.edges)).T
contexts = torch.tensor([weight for _, _, weight in club.edges(data="weight")], dtype=torch.float32)
edge_index, edge_attr = torch.cat([ends, ends.flip(0)], dim=1), contexts.repeat(2)[:, None] / contexts.mean()
edge_index, edge_attr = add_self_loops(edge_index, edge_attr, len(club))
graph = trigraph.CSC.from_edge_index(edge_index, len(club))
side = torch.tensor([club.nodes[member]["club"] != "Mr. Hi" for member in club]).long()
x = torch.eye(len(club))

# %%
# Three layers
# ------------
# ``GATConv`` has the constructor and the parameters of PyTorch Geometric's layer. Dropout of attention coefficients
# prevents overfitting to the two known members.


class AttentionModel(torch.nn.Module):
    """Three layers of attention that return a score for each side and member."""

    def __init__(self, num_members, width=8, heads=4):
        super().__init__()
        options = {"edge_dim": 1, "add_self_loops": False, "dropout": 0.3}  # the graph already contains self-loops
        self.first = GATConv(num_members, width, heads, **options)
        self.second = GATConv(width * heads, width, heads, **options)
        self.third = GATConv(width * heads, 2, **options)

    def forward(self, x):
        """Return the scores, with shape (members, 2)."""
        x = elu(self.first(x, graph, edge_attr))
        return self.third(elu(self.second(x, graph, edge_attr)), graph, edge_attr)


model = AttentionModel(len(club))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-3)
for _ in range(STEPS):
    loss = cross_entropy(model(x)[KNOWN], side[KNOWN])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Who attends to whom
# -------------------
# The width of a line is the attention between its two members in the first layer, averaged over the heads. Circles and
# squares show the predicted sides. A wrong prediction has a thick border.

with torch.no_grad():
    scores = model.eval()(x)
    _, (ends, attention) = model.first(x, graph, edge_attr, return_attention_weights=True)
correct = scores.argmax(1) == side
print(
    f"{int(correct.sum()) - len(KNOWN)} of {len(club) - len(KNOWN)} members predicted correctly; loss {loss.item():.3f}"
)
assert correct.sum() >= 26  # random predictions would be correct for half of the members

attention_of_pair = {(int(a), int(b)): float(w) for (a, b), w in zip(ends.T, attention.mean(1), strict=True)}
node_positions = networkx.spring_layout(club, seed=3)
figure, ax = plt.subplots(figsize=(6.5, 4.8), layout="constrained")
widths = [6 * (attention_of_pair[a, b] + attention_of_pair[b, a]) for a, b in club.edges]
networkx.draw_networkx_edges(club, node_positions, ax=ax, width=widths, edge_color="0.55")
for number, (name, shape, color) in enumerate((("instructor", "o", "#F0E442"), ("officer", "s", "#56B4E9"))):
    members = [m for m in club if scores[m].argmax() == number]
    borders = [0.8 if correct[m] else 3.5 for m in members]
    markers = networkx.draw_networkx_nodes(
        club, node_positions, members, ax=ax, node_shape=shape, node_color=color, edgecolors="black", linewidths=borders
    )
    markers.set_label(f"predicted on the {name}'s side")
networkx.draw_networkx_labels(club, node_positions, ax=ax, font_size=9)
ax.legend(loc="upper left", fontsize=9)
ax.axis("off")
plt.show()
