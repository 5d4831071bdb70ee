"""Functions like those in `field.strangers`, written before the last changes of the checks and checked once after them.

No check was changed because of these functions. First verdicts: all wrong functions failed. Of the correct functions,
"n langevin" was inconclusive, and "cosine cutoff", whose second derivative jumps at a distance of 1e-9, failed.
"""

import numpy as np
import torch

from field.entry import attach_gradient, draw_normal, make_tensor
from field.strangers import F, make_spaced_numbers, vjp_options

V, W, R = draw_normal(6, seed=11), draw_normal(5, 3, seed=12), make_spaced_numbers(3, 3)
ROWS = torch.tensor([3, 0, 0, 2, 1, 3])
GATES = draw_normal(12, 7, seed=14)
EYE = torch.eye(3, dtype=torch.float64)


class SquareWithRunningMean:
    """Square the difference between an input and its running mean over all calls."""

    mean = 0.0

    def __call__(self, x):
        self.mean = 0.9 * self.mean + 0.1 * float(x.detach().mean())
        return (x - self.mean) ** 2


def fixed_point_without_history(x):
    """Solve y = tanh(W y + x), but differentiate only the last iteration."""
    y = torch.zeros(3, dtype=x.dtype)
    with torch.no_grad():
        for _ in range(200):
            y = torch.tanh(0.4 * R @ y + x)
    return torch.tanh(0.4 * R @ y + x)


def interpolate_with_detached_weights(x):
    """Interpolate a table linearly; autograd treats the weights of both nodes as constants."""
    table = torch.linspace(0, 2, 30, dtype=x.dtype).square()
    low = (8 * x).floor()
    weight = (8 * x - low).detach()
    return x - x.detach() + (1 - weight) * table[low.long()] + weight * table[low.long() + 1]


def sine_gradient_with_wrong_element(g, x):
    slope = g * x.cos()
    return torch.where(torch.arange(600) == 234, 0.9 * slope, slope)


third = attach_gradient(lambda x: 6 * x, lambda g, x: g * (6 + 0.06 * (torch.arange(6) == 2)))
second = attach_gradient(lambda x: 3 * x**2, lambda g, x: g * third(x))

WRONG = {
    "root mean square norm": (
        attach_gradient(
            lambda x: x * x.square().mean(-1, keepdim=True).rsqrt(),
            lambda g, x: g * x.square().mean(-1, keepdim=True).rsqrt(),
        ),
        W,
    ),
    "softmax without its mean": (attach_gradient(lambda x: x.softmax(-1), lambda g, x: g * x.softmax(-1)), W),
    "focal loss": (lambda x: ((1 - x.sigmoid().detach()) ** 2 * F.softplus(-x)).sum(), V),
    "scattered to other rows": (
        attach_gradient(lambda x: x[ROWS[:5]], lambda g, x: torch.zeros_like(x).index_add(0, ROWS[1:], g)),
        W[:4],
    ),
    "weights of a table": (interpolate_with_detached_weights, make_tensor(0.31, 1.07, 0.77)),
    "determinant by cholesky": (
        attach_gradient(
            lambda x: 2 * torch.linalg.cholesky(x @ x.T + EYE).diagonal().log().sum(),
            lambda g, x: g * torch.linalg.inv(x @ x.T + EYE) @ x,
        ),
        R,
    ),
    "gelu twice": (
        attach_gradient(
            F.gelu,
            attach_gradient(
                lambda g, x: g * (torch.special.ndtr(x) + x * (-x * x / 2).exp() / (2 * np.pi) ** 0.5),
                lambda c, g, x: (
                    c * (torch.special.ndtr(x) + x * (-x * x / 2).exp() / (2 * np.pi) ** 0.5),
                    c * g * (1 - x * x) * (-x * x / 2).exp() / (2 * np.pi) ** 0.5,
                ),
            ),
        ),
        V,
    ),
    "screened charge": (
        attach_gradient(lambda r: torch.erfc(r) / r, lambda g, r: -g * torch.erfc(r) / r**2),
        make_spaced_numbers(4),
    ),
    "running mean": (SquareWithRunningMean(), V),
    "last iteration alone": (fixed_point_without_history, V[:3]),
    "one of 600": (attach_gradient(torch.sin, sine_gradient_with_wrong_element), draw_normal(600, seed=13)),
    "third derivative of a cube": (attach_gradient(lambda x: x**3, lambda g, x: g * second(x)), V, {"order": 3}),
}
RIGHT = {
    "wave over a distance": (lambda r: (40 * r).sin() / r, make_tensor(0.01, 0.4)),
    "lgamma of large": (torch.lgamma, make_tensor(1e6, 40.0)),
    "student": (lambda x: -3 * torch.log1p(x * x / 5), make_tensor(1e4, 0.0, -0.5)),
    "repulsion": (lambda r: 4 * ((1 / r) ** 12 - (1 / r) ** 6), make_tensor(0.3, 1.0, 2.0)),
    "flat at 0": (lambda x: (-1 / x).exp(), make_tensor(0.05, 1.0)),
    "cosine cutoff": (
        lambda r: torch.where(r < 1, 0.5 * ((np.pi * r).cos() + 1), 0.0),
        make_tensor(0.3, 1 - 1e-9, 1.2),
    ),
    "triangular": (lambda a, b: torch.linalg.solve_triangular(a.tril(), b[:, None], upper=False), R + 2 * EYE, V[:3]),
    "masked logsumexp": (
        lambda x: x.masked_fill(torch.tensor([False, True, False, False, True, False]), -torch.inf).logsumexp(0),
        100 * V,
    ),
    "rotation of a quaternion": (
        lambda q: torch.linalg.cross(q[:3] / q.norm(), V[:3]) * q[3] / q.norm(),
        make_tensor(1e-5, 0.3, -2.0, 1e-3),
    ),
    "nearest image": (lambda x: (x - x.round()).square().sum(-1).sqrt(), 3 * W),
    "lstm": (
        lambda x, h: torch.lstm_cell(x[None], (h[None], h[None].tanh()), GATES[:, :4], GATES[:, 4:])[0],
        V[:4],
        V[3:],
    ),
    "variance beside an offset": (lambda x: x.var(), 1e4 + V),
}

N = np.linspace(0.2, 1.7, 6)
M = N[:3, None] * N[3:] + 2 * np.eye(3)
KERNEL = np.array([0.5, -1.0, 0.25])


def second_derivatives_without_mixed(x, g, u):
    """Return second derivatives of a^2 b without the mixed derivative."""
    (a, b), (c,), (s, t) = x, g, u
    return (2 * b * c * s, 0 * b), (2 * a * b * s + a * a * t,)


NUMPY_WRONG = {
    "n determinant": (np.linalg.det, M + np.triu(M), vjp_options(lambda g, x: g * np.linalg.det(x) * np.linalg.inv(x))),
    "n simpson": (
        lambda x: np.array([1, 4, 2, 4, 2, 1]) @ np.sin(x),
        N,
        vjp_options(lambda g, x: g * np.array([1, 4, 2, 4, 2, 4]) * np.cos(x)),
    ),
    "n convolution": (
        lambda x: np.convolve(x, KERNEL, "same"),
        N,
        vjp_options(lambda g, x: np.convolve(g, KERNEL, "same")),
    ),
    "n mixed": (
        lambda a, b: a * a * b,
        N,
        N[::-1].copy(),
        {"vjp": (lambda x, g: (2 * x[0] * x[1] * g[0], x[0] ** 2 * g[0]), second_derivatives_without_mixed)},
    ),
}
NUMPY_RIGHT = {
    "n log determinant": (lambda x: np.linalg.slogdet(x)[1], M, vjp_options(lambda g, x: g * np.linalg.inv(x).T)),
    "n langevin": (
        lambda x: np.log(np.sinh(x) / x),
        np.array([1e-3, 0.5, 20.0]),
        vjp_options(lambda g, x: g * (1 / np.tanh(x) - 1 / x)),
    ),
    "n beside a branch": (
        lambda y, x: np.arctan2(y, x),
        np.array([1e-3, -2.0]),
        np.array([-1.0, -1.0]),
        {
            "vjp": lambda p, g: (g[0] * p[1] / (p[0] ** 2 + p[1] ** 2), -g[0] * p[0] / (p[0] ** 2 + p[1] ** 2)),
            "order": 1,
        },
    ),
    "n trapezoid": (
        lambda x: np.cumsum((x[1:] + x[:-1]) / 2),
        N,
        vjp_options(lambda g, x: np.convolve(np.cumsum(g[::-1])[::-1], [0.5, 0.5])),
    ),
}


def list_jax_functions():
    """Return wrong and correct functions of JAX arrays."""
    import jax
    import jax.numpy as jnp

    x, m, stop = jnp.asarray(N), jnp.asarray(M), jax.lax.stop_gradient
    smooth = jax.custom_jvp(jax.nn.softplus)
    smooth.defjvp(lambda p, t: (smooth(p[0]), jax.nn.sigmoid(p[0].astype("float32")).astype("float64") * t[0]))
    unit = jax.custom_vjp(lambda x: x / jnp.linalg.norm(x))
    unit.defvjp(
        lambda x: (unit(x), x),
        lambda x, g: ((g - x * (x @ g) / (x @ x + 1e-3)) / jnp.linalg.norm(x),),
    )
    rows = jnp.array([0, 5, 5, 2])
    taken = jax.custom_vjp(lambda x: x[rows])
    taken.defvjp(lambda x: (x[rows], x), lambda x, g: (jnp.zeros_like(x).at[rows].set(g),))
    arc = jax.custom_jvp(jnp.arctan)
    arc.defjvp(lambda p, t: (arc(p[0]), t[0] / (1 + p[0] * stop(p[0]))))

    @jax.jit
    def newton_square_root(a):
        return jax.lax.fori_loop(0, 40, lambda _, y: (y + a / y) / 2, jnp.ones_like(a))

    @jax.jit
    def integrate_orbit(x):
        def advance_orbit(state, _):
            q, p = state
            p = p - 0.05 * q / (1 + q * q)
            return (q + 0.05 * p, p), q

        return jax.lax.scan(advance_orbit, (x[:3], x[3:]), None, length=60)[1][-1]

    wrong = {
        "j softplus": (smooth, x),
        "j unit": (unit, x),
        "j rows": (taken, x),
        "j arc": (arc, x),
    }
    right = {
        "j newton": (newton_square_root, jnp.array([1e-3, 2.0, 900.0])),
        "j orbit": (integrate_orbit, x),
        "j eigenvalues": (lambda a: jnp.linalg.eigvalsh(a + a.T), m),
        "j checkpoint": (jax.checkpoint(lambda x, m: jnp.tanh(jnp.tanh(x[:3] @ m) @ m)), x, m),
    }
    return wrong, right
