"""A neural operator that solves Poisson's equation around an airfoil, on meshes that it has not seen.

The equation is -laplace(u) = f in a disc around an airfoil, u = 0 on the circle and on the airfoil. The solution is an
integral of f with a kernel, Green's function of this domain, which nobody can write down: a layer of a graph neural
operator learns it from pairs of f and u on one mesh of 322 nodes. Every node is a neighbour of every node, f enters
by its integral around each node, and the kernel sees where the two nodes are, how far apart, and how far from the
boundary. Nothing in it depends on the mesh, so the same layer solves for other f on refined meshes, too.

Needs torch: pip install 'trigraph[torch]'.
"""

from importlib.resources import files

import click
import matplotlib as mpl
import numpy as np
import torch
from rich.progress import track
from scipy import sparse
from scipy.sparse.linalg import splu
from scipy.spatial import cKDTree

import trigraph
from trigraph.torch.nn import GNOLayer

RADIUS = 5.0  # of the disc; the airfoil's chord is 1
COORD_DIM = 10


def sides_of(triangles):
    """Return the sides of triangles, which side each corner pair is, and how many triangles have it."""
    pairs = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    return np.unique(np.sort(pairs, axis=1), axis=0, return_inverse=True, return_counts=True)


def airfoil_triangles(points, graph):
    """Return the triangles of the mesh, of which the file has the edges: cycles of three with no node inside."""
    near = [set(graph.indices[a:b].tolist()) for a, b in zip(graph.offsets, graph.offsets[1:], strict=False)]
    cycles = [(i, j, k) for i in range(len(near)) for j in near[i] for k in near[i] & near[j] if i < j < k]

    def empty(i, j, k):
        sides = np.stack([points[j] - points[i], points[k] - points[i]], axis=1)
        inside = np.linalg.solve(sides, (points - points[i]).T)
        return not ((inside > 1e-9).all(axis=0) & (inside.sum(axis=0) < 1 - 1e-9)).any()

    return np.array([cycle for cycle in cycles if empty(*cycle)])


class Mesh:
    """Linear finite elements on triangles, with u = 0 on the boundary."""

    def __init__(self, points, triangles):
        self.points, self.triangles = points, triangles
        corners, n = points[triangles], len(points)
        opposite = np.roll(corners, -2, axis=1) - np.roll(corners, -1, axis=1)
        areas = np.abs(np.linalg.det(opposite[:, :2])) / 2
        rows, columns = np.repeat(triangles, 3, axis=1).ravel(), np.tile(triangles, (1, 3)).ravel()
        stiffness = opposite @ opposite.transpose(0, 2, 1) / (4 * areas[:, None, None])
        mass = areas[:, None, None] / 12 * (np.ones((3, 3)) + np.eye(3))
        self.mass = sparse.csc_matrix((mass.ravel(), (rows, columns)), shape=(n, n))
        self.area = np.asarray(self.mass.sum(axis=1)).ravel()  # around each node
        sides, _, counts = sides_of(triangles)
        self.boundary = np.unique(sides[counts == 1])
        self.inside = np.setdiff1d(np.arange(n), self.boundary)
        stiffness = sparse.csc_matrix((stiffness.ravel(), (rows, columns)), shape=(n, n))
        self.factors = splu(stiffness[self.inside][:, self.inside])

    def refined(self):
        """Return the mesh with every triangle cut into four."""
        sides, which, _ = sides_of(self.triangles)
        ab, bc, ca = which.reshape(3, -1) + len(self.points)
        a, b, c = self.triangles.T
        parts = [np.stack(t, axis=1) for t in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
        return Mesh(np.concatenate([self.points, self.points[sides].mean(axis=1)]), np.concatenate(parts))

    def solve(self, f):
        """Return u for each row of f."""
        u = np.zeros_like(f)
        u[:, self.inside] = self.factors.solve((self.mass @ f.T)[self.inside]).T
        return u


class Forces:
    """Random functions f: sums of three bumps."""

    def __init__(self, rng, number):
        angle, radius = rng.uniform(0, 2 * np.pi, (number, 3)), 4 * np.sqrt(rng.uniform(0, 1, (number, 3)))
        self.centers = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
        self.widths, self.heights = rng.uniform(1, 2.5, (number, 3)), rng.standard_normal((number, 3))

    def at(self, points):
        """Return (number, points)."""
        squares = ((points[:, None, None] - self.centers) ** 2).sum(axis=3)
        return (self.heights * np.exp(-squares / (2 * self.widths**2))).sum(axis=2).T


class Solver(torch.nn.Module):
    """The operator: u = distance to the boundary times the integral of kernel and f."""

    def __init__(self, airfoil, hidden):
        super().__init__()
        self.airfoil, self.scale = cKDTree(airfoil), 1.0
        self.layer = GNOLayer(1, 1, COORD_DIM, hidden, bias=False)  # its linear term W h is left out: it knows no area

    def distances(self, points):
        """Return the distances to the circle and to the airfoil."""
        return (RADIUS - np.linalg.norm(points, axis=1)).clip(0), self.airfoil.query(points)[0]

    def edges(self, at, points):
        """Return the graph of every node of the mesh to every point where u is wanted, and what the kernel sees."""
        dst, src = np.divmod(np.arange(len(at) * len(points)), len(points))
        far = np.linalg.norm(at[dst] - points[src], axis=1) / RADIUS
        pairs = [at[dst].T / RADIUS, points[src].T / RADIUS, [far, np.log(far + 0.06)]]
        pairs += [np.stack(self.distances(at))[:, dst] / RADIUS, np.stack(self.distances(points))[:, src] / RADIUS]
        coords = torch.tensor(np.concatenate(pairs).T, dtype=torch.float32)
        return trigraph.CSC.from_coo(src, dst, len(points), len(at)), coords

    def forward(self, mesh, f, nodes):
        """Return u (functions, nodes) at some nodes of a mesh, of f (functions, all nodes)."""
        at = mesh.points[nodes]
        graph, coords = self.edges(at, mesh.points)
        circle, airfoil = self.distances(at)
        edge = torch.tensor(circle * airfoil / (circle + airfoil + 1e-9), dtype=torch.float32)
        integrals = torch.tensor((mesh.mass @ f.T).T, dtype=torch.float32)  # of f around each node
        found = [self.layer((around[:, None], None), graph, coords)[:, 0] for around in integrals]
        return self.scale * edge * torch.stack(found)

    @torch.no_grad()
    def solve(self, mesh, f):
        """Return u (functions, all nodes), some nodes after the other."""
        nodes = np.arange(len(mesh.points))
        pieces = np.array_split(nodes, 1 + len(nodes) ** 2 // 500_000)
        return np.concatenate([self(mesh, f, piece).numpy() for piece in pieces], axis=1)


def error(got, expected, area):
    """Return the relative error in the mean square over the domain."""
    return np.sqrt(((got - expected) ** 2 @ area).sum() / (expected**2 @ area).sum())


def train(solver, mesh, forces, steps, rng, batch=4, num_nodes=80):
    """Fit u at random nodes for random f; return the course of the relative error."""
    f = forces.at(mesh.points)
    u = mesh.solve(f)
    solver.scale = float(u.std())
    optimizer = torch.optim.Adam(solver.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    course = []
    for _ in track(range(steps), "training"):
        some, nodes = rng.choice(len(f), batch, replace=False), rng.choice(mesh.inside, num_nodes, replace=False)
        target, weight = torch.tensor(u[np.ix_(some, nodes)]), torch.tensor(mesh.area[nodes])
        loss = ((solver(mesh, f[some], nodes) - target) ** 2 @ weight).sum() / (target**2 @ weight).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        course.append(loss.item() ** 0.5)
    return course


def plot(path, mesh, expected, got, course, errors):
    """Draw one solution on the finest mesh, and the errors."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(18, 4))
    top = np.abs(expected).max()
    pictures = {"finite elements": (expected, top), "operator": (got, top), "difference": (got - expected, top / 4)}
    for ax, (name, (values, most)) in zip(axes, pictures.items(), strict=False):
        drawn = ax.tripcolor(
            *mesh.points.T, mesh.triangles, values, shading="gouraud", cmap="RdBu", vmin=-most, vmax=most
        )
        figure.colorbar(drawn, ax=ax, shrink=0.8)
        ax.set_title(f"{name}, {len(values)} nodes")
        ax.set_aspect("equal")
    axes[3].semilogy(course, color="0.7", label="training, 322 nodes")
    for nodes, value in errors.items():
        axes[3].plot(len(course), value, "o", clip_on=False, label=f"other f, {nodes} nodes")
    axes[3].set_xlabel("step")
    axes[3].set_title("relative error")
    axes[3].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


@click.command(help=__doc__)
@click.option("--steps", default=600, show_default=True, type=click.IntRange(1), help="Steps of the training.")
@click.option(
    "--refinements", default=2, show_default=True, type=click.IntRange(0), help="How many times the mesh is refined."
)
@click.option("--small", is_flag=True, help="Few steps, a narrow kernel and one refinement, for a test.")
@click.option("--out", default="gno_poisson.png", show_default=True, help="Where to write the plot.")
def main(steps, refinements, small, out):
    """Train on one mesh, test on it and on finer ones, plot."""
    steps, refinements, hidden, number = (30, 1, 16, 1) if small else (steps, refinements, 64, 10)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    with np.load(str(files("trigraph.verification") / "data" / "airfoil.npz")) as data:
        points, graph = data["positions"], trigraph.CSC(data["offsets"], data["indices"])
    mesh = Mesh(points, airfoil_triangles(points, graph))
    edge = points[mesh.boundary]
    solver = Solver(edge[np.linalg.norm(edge, axis=1) < RADIUS / 2], hidden)
    course = train(solver, mesh, Forces(rng, 200), steps, rng)
    others, errors = Forces(rng, number), {}
    for level in range(refinements + 1):
        f = others.at(mesh.points)
        expected, got = mesh.solve(f), solver.solve(mesh, f)
        errors[len(mesh.points)] = error(got, expected, mesh.area)
        print(f"{len(mesh.points)} nodes: relative error {errors[len(mesh.points)]:.3f}")
        if level < refinements:
            mesh = mesh.refined()
    plot(out, mesh, expected[0], got[0], course, errors)
    print(f"plot in {out}")


if __name__ == "__main__":
    main()
