r"""
A neural operator around an airfoil
===================================

A neural operator maps functions to functions. If it is trained on a coarse mesh, it also works on a finer one. This
tutorial solves :math:`-\Delta u = f` in a disc around an airfoil, with :math:`u = 0` on the circle and on the airfoil.
The solution is an integral of ``f`` with a kernel, the Green's function of the domain. A layer of a graph neural
operator learns this kernel on a mesh of 322 nodes, and is then used on one of 1,226.
"""

from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.tri import Triangulation, UniformTriRefiner
from scipy import sparse
from scipy.sparse.linalg import splu
from scipy.spatial import Delaunay, cKDTree

import trigraph
from trigraph.torch.nn import GNOLayer

plt.style.use("tableau-colorblind10")
STEPS, HIDDEN, TESTS = 250, 48, 4
RADIUS = 5.0  # radius of the disc, in chord lengths of the airfoil
rng = np.random.default_rng(0)
torch.manual_seed(0)

# %%
# Meshes
# ------
# The mesh is pyamg's airfoil, whose file contains only nodes and edges. Its triangles are the Delaunay triangles whose
# three sides are edges in the file. Linear finite elements on this mesh generate the training data.


class FiniteElementMesh:
    """Linear finite elements on triangles, with u = 0 on the boundary."""

    def __init__(self, grid):
        self.grid, self.points, triangles = grid, np.stack([grid.x, grid.y], axis=1), grid.triangles
        corners, n = self.points[triangles], len(self.points)
        opposite = np.roll(corners, -2, axis=1) - np.roll(corners, -1, axis=1)
        areas = np.abs(np.linalg.det(opposite[:, :2])) / 2
        rows, columns = np.repeat(triangles, 3, axis=1).ravel(), np.tile(triangles, (1, 3)).ravel()
        stiffness = opposite @ opposite.transpose(0, 2, 1) / (4 * areas[:, None, None])
        mass = areas[:, None, None] / 12 * (np.ones((3, 3)) + np.eye(3))
        self.mass = sparse.csc_matrix((mass.ravel(), (rows, columns)), shape=(n, n))
        self.area = np.asarray(self.mass.sum(axis=1)).ravel()  # integral of each node's basis function
        self.boundary = np.unique(triangles[grid.neighbors < 0])  # nodes of edges that belong to only one triangle
        self.inside = np.setdiff1d(np.arange(n), self.boundary)
        stiffness = sparse.csc_matrix((stiffness.ravel(), (rows, columns)), shape=(n, n))
        self.factors = splu(stiffness[self.inside][:, self.inside])

    def solve_poisson(self, f):
        """Return the solution u for each row of f."""
        u = np.zeros_like(f)
        u[:, self.inside] = self.factors.solve((self.mass @ f.T)[self.inside]).T
        return u


with np.load(str(files("trigraph.verification") / "data" / "airfoil.npz")) as data:
    points = data["positions"]
    has_edge = sparse.csr_matrix((np.ones(len(data["indices"]), bool), data["indices"], data["offsets"])).toarray()
triangles = Delaunay(points).simplices
triangles = triangles[has_edge[triangles, np.roll(triangles, 1, axis=1)].all(axis=1)]
mesh = FiniteElementMesh(Triangulation(*points.T, triangles))
fine = FiniteElementMesh(UniformTriRefiner(mesh.grid).refine_triangulation(subdiv=1))
boundary_points = points[mesh.boundary]
airfoil_tree = cKDTree(boundary_points[np.linalg.norm(boundary_points, axis=1) < RADIUS / 2])
print(f"{len(mesh.points)} nodes, and {len(fine.points)} after every triangle was cut into four")

# %%
# Right-hand sides
# ----------------
# Each ``f`` is a sum of three random bumps, which can be evaluated at any point.


class RandomBumpFunctions:
    """Random functions, each a sum of three Gaussian bumps."""

    def __init__(self, number):
        angle, radius = rng.uniform(0, 2 * np.pi, (number, 3)), 4 * np.sqrt(rng.uniform(0, 1, (number, 3)))
        self.centers = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
        self.widths, self.heights = rng.uniform(1, 2.5, (number, 3)), rng.standard_normal((number, 3))

    def evaluate_at(self, points):
        """Return the values of all functions at the points, with shape (number, points)."""
        squares = ((points[:, None, None] - self.centers) ** 2).sum(axis=3)
        return (self.heights * np.exp(-squares / (2 * self.widths**2))).sum(axis=2).T


# %%
# The operator
# ------------
# Every node of the mesh is a neighbour of every point where ``u`` is computed. The kernel depends on the two positions,
# their distance, and their distances from the boundary. ``f`` enters as its integral around each node. None of these
# quantities depends on the mesh.


class KernelIntegralModel(torch.nn.Module):
    """A model for u: the distance to the boundary times the integral of a kernel times f."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.layer = GNOLayer(1, 1, 10, HIDDEN, bias=False)  # each edge has 10 coordinates

    def compute_boundary_distances(self, points):
        """Return the distances to the circle and to the airfoil."""
        return (RADIUS - np.linalg.norm(points, axis=1)).clip(0), airfoil_tree.query(points)[0]

    def build_graph_and_coords(self, at, points):
        """Return the graph of edges from every node to every point where u is computed, and their coordinates."""
        dst, src = np.divmod(np.arange(len(at) * len(points)), len(points))
        separation = np.linalg.norm(at[dst] - points[src], axis=1) / RADIUS
        pairs = [at[dst].T / RADIUS, points[src].T / RADIUS, [separation, np.log(separation + 0.06)]]
        pairs += [
            np.stack(self.compute_boundary_distances(at))[:, dst] / RADIUS,
            np.stack(self.compute_boundary_distances(points))[:, src] / RADIUS,
        ]
        coords = torch.tensor(np.concatenate(pairs).T, dtype=torch.float32)
        return trigraph.CSC.from_coo(src, dst, len(points), len(at)), coords

    def forward(self, mesh, f, nodes):
        """Return u (functions, selected nodes) for f (functions, all nodes)."""
        at = mesh.points[nodes]
        graph, coords = self.build_graph_and_coords(at, mesh.points)
        circle, profile = self.compute_boundary_distances(at)
        factor = torch.tensor(circle * profile / (circle + profile + 1e-9), dtype=torch.float32)
        integrals = torch.tensor((mesh.mass @ f.T).T, dtype=torch.float32)  # integral of f around each node
        terms = [self.layer((around[:, None], None), graph, coords)[:, 0] for around in integrals]
        return self.scale * factor * torch.stack(terms)


# %%
# Training on the coarse mesh
# ---------------------------
# Each step fits ``u`` for four of the functions at 80 random nodes. The loss is the squared relative error.

f = RandomBumpFunctions(200).evaluate_at(mesh.points)
u = mesh.solve_poisson(f)
solver = KernelIntegralModel(float(u.std()))
optimizer = torch.optim.Adam(solver.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=STEPS)
training_errors = []
for _ in range(STEPS):
    chosen, nodes = rng.choice(len(f), 4, replace=False), rng.choice(mesh.inside, 80, replace=False)
    target, weight = torch.tensor(u[np.ix_(chosen, nodes)]), torch.tensor(mesh.area[nodes])
    loss = ((solver(mesh, f[chosen], nodes) - target) ** 2 @ weight).sum() / (target**2 @ weight).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    training_errors.append(loss.item() ** 0.5)

# %%
# Other functions, and a finer mesh
# ---------------------------------
# The trained layer is tested on functions that it has not seen, on the coarse mesh and on the finer one.

test_bumps, errors = RandomBumpFunctions(TESTS), []
for test_mesh in (mesh, fine):
    expected = test_mesh.solve_poisson(test_bumps.evaluate_at(test_mesh.points))
    pieces = np.array_split(np.arange(len(test_mesh.points)), 8)
    with torch.no_grad():
        got = torch.cat(
            [solver(test_mesh, test_bumps.evaluate_at(test_mesh.points), piece) for piece in pieces], dim=1
        ).numpy()
    errors.append(np.sqrt(((got - expected) ** 2 @ test_mesh.area).sum() / (expected**2 @ test_mesh.area).sum()))
    print(f"{len(test_mesh.points)} nodes: relative error {errors[-1]:.3f}")
assert max(errors) < 0.5  # the solution u = 0 would have an error of 1

# %%
# Contour lines are solid for positive values and dashed for negative values.

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", sharey=True)
top = np.abs(expected[0]).max()
pictures = {"finite elements": expected[0], "operator": got[0], "difference": got[0] - expected[0]}
for ax, (name, values) in zip(axes, pictures.items(), strict=True):
    image = ax.tripcolor(fine.grid, values, shading="gouraud", cmap="cividis", vmin=-top, vmax=top)
    ax.tricontour(fine.grid, values, levels=np.linspace(-top, top, 12), colors="white", linewidths=0.7)
    ax.set(title=name, xlabel="x (chord lengths)", aspect="equal")
axes[0].set_ylabel("y (chord lengths)")
figure.colorbar(image, ax=axes, label="u", shrink=0.9)
plt.show()

# %%
figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.semilogy(training_errors, linewidth=1, label=f"training, {len(mesh.points)} nodes")
for test_mesh, value, marker in zip((mesh, fine), errors, "os", strict=True):
    ax.plot(STEPS, value, "k" + marker, clip_on=False, label=f"other functions, {len(test_mesh.points)} nodes")
ax.set(xlabel="step", ylabel="relative error")
ax.legend()
plt.show()
