"""Attention on Zachary's karate club: which side a member takes when the club splits, from two known members.

Three layers of graph attention see who meets whom, and in how many contexts (the feature of an edge). They are trained
on the side of the instructor (member 0) and of the officer (member 33) alone, and predict the other 32. Attention
coefficients are dropped in training, which keeps the layers from learning the two known members by heart. The plot
shows the members by predicted side, edges by the attention paid along them, and the course of the training.

Needs torch and networkx: pip install 'trigraph[torch]' networkx.
"""

import click
import matplotlib as mpl
import networkx
import torch
from rich.progress import track
from torch.nn.functional import cross_entropy, elu

import trigraph
from trigraph.torch.nn import GATConv, add_self_loops

KNOWN = [0, 33]


class Model(torch.nn.Module):
    """Three layers of attention; the members have no features but who they are."""

    def __init__(self, num_members, width=8, heads=4):
        super().__init__()
        options = {"edge_dim": 1, "add_self_loops": False}  # the graph below holds the self loops
        self.first = GATConv(num_members, width, heads, dropout=0.3, **options)
        self.second = GATConv(width * heads, width, heads, dropout=0.3, **options)
        self.third = GATConv(width * heads, 2, dropout=0.3, **options)

    def forward(self, x, graph, edge_attr):
        """Return a score of each side for every member."""
        x = elu(self.first(x, graph, edge_attr))
        return self.third(elu(self.second(x, graph, edge_attr)), graph, edge_attr)


def load():
    """Return the club, its edges in both directions with their features and with self loops, and the sides taken."""
    club = networkx.karate_club_graph()
    ends = torch.tensor(list(club.edges)).T
    contexts = torch.tensor([weight for _, _, weight in club.edges(data="weight")], dtype=torch.float32)
    edge_index, edge_attr = torch.cat([ends, ends.flip(0)], dim=1), contexts.repeat(2)[:, None] / contexts.mean()
    side = torch.tensor([club.nodes[member]["club"] != "Mr. Hi" for member in club]).long()
    return club, *add_self_loops(edge_index, edge_attr, len(club)), side


def plot(path, club, scores, edge_index, attention, course):
    """Draw the club and the course of the training."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    paid = {(int(a), int(b)): float(w) for (a, b), w in zip(edge_index.T, attention.mean(1), strict=True)}
    widths = [4 * (paid[a, b] + paid[b, a]) for a, b in club.edges]
    place = networkx.spring_layout(club, seed=3)
    networkx.draw_networkx_edges(club, place, ax=left, width=widths, edge_color="0.6")
    colors = scores.softmax(1)[:, 1].numpy()
    networkx.draw_networkx_nodes(
        club, place, ax=left, node_color=colors, cmap="coolwarm", vmin=0, vmax=1, node_size=180
    )
    networkx.draw_networkx_labels(club, place, ax=left, font_size=7)
    left.set_title("predicted side (color) and attention (width)")
    left.axis("off")
    for name, values in course.items():
        right.plot(values, label=name)
    right.set_xlabel("step")
    right.set_ylim(0, 1.05)
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


@click.command(help=__doc__)
@click.option("--steps", default=100, show_default=True, type=click.IntRange(1), help="Steps of the training.")
@click.option("--small", is_flag=True, help="Few steps, for a test.")
@click.option("--out", default="karate.png", show_default=True, help="Where to write the plot.")
def main(steps, small, out):
    """Train, print the accuracy, plot."""
    torch.manual_seed(0)
    club, edge_index, edge_attr, side = load()
    graph = trigraph.CSC.from_edge_index(edge_index, len(club))  # built once, for every step and both layers
    x, others = torch.eye(len(club)), torch.ones(len(club), dtype=torch.bool)
    others[KNOWN] = False
    model = Model(len(club))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-3)
    course = {"loss on the two known members": [], "accuracy on the others": []}
    for _ in track(range(30 if small else steps), "training"):
        loss = cross_entropy(model.train()(x, graph, edge_attr)[KNOWN], side[KNOWN])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            right = (model.eval()(x, graph, edge_attr).argmax(1) == side)[others]
        for values, value in zip(course.values(), (loss, right.float().mean()), strict=True):
            values.append(value.item())
    with torch.no_grad():
        scores = model(x, graph, edge_attr)
        _, (ends, attention) = model.first(x, graph, edge_attr, return_attention_weights=True)
    print(f"{int(right.sum())} of {len(right)} members predicted right; loss {loss.item():.3f}")
    plot(out, club, scores, ends, attention, course)
    print(f"plot in {out}")


if __name__ == "__main__":
    main()
