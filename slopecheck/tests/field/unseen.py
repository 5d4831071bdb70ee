"""Functions like those in `field.strangers`, written when the checks were finished and not tuned to these functions."""

import numpy as np
import torch

from field.entry import attach_gradient, draw_normal, make_tensor
from field.strangers import F, cache_by_shape, make_spaced_numbers, vjp_options

V, W, P = draw_normal(6, seed=3), draw_normal(4, 2, seed=4), make_spaced_numbers(3, 3)
A = P @ P.T + torch.eye(3, dtype=torch.float64)
TABLE = torch.linspace(0, 1, 11, dtype=torch.float64).exp()
MASK = torch.tensor([True, False, True, True, False, True])


def read_nearest_table_value(x):
    """Return the table value of the nearest node."""
    return TABLE[(10 * x).round().long().clamp(0, 10)]


WRONG = {
    # Torch 2.13: second derivatives are NaN instead of 0 where the exponential of the difference overflows.
    "logaddexp": (torch.logaddexp, make_tensor(0.0, 500.0), make_tensor(1.0, -500.0)),
    "cumprod in float32": (lambda x: x.float().cumprod(0).double() + x, V),
    "norm in float32": (lambda x: x / x.float().norm().double(), V),
    "einsum in half precision": (lambda x: torch.einsum("ij,ik->jk", x.half(), x.half()).double(), W),
    "slope in float32": (attach_gradient(lambda x: x.exp(), lambda g, x: g * x.float().exp().double()), V),
    "max pooling of equal numbers": (lambda x: F.max_pool1d(x[None], 2), make_tensor(1, 1, 2, 0)),
    "hinge at its corner": (lambda x: (1 - x).clamp(min=0).sum(), make_tensor(1.0, 0.2)),
    "sum of magnitudes": (lambda x: x.abs().sum() + (x**2).sum(), make_tensor(0.0, 0.0, 1.0)),
    "median": (lambda x: x.median() ** 2 + x.sum() * 0, make_tensor(2.0, 2.0, 2.0)),
    "nearest in a table": (lambda x: read_nearest_table_value(x) + (x - x.detach()), make_spaced_numbers(4) / 2),
    "tiny part": (
        attach_gradient(
            lambda x: (x * make_tensor(1e7, 1)).sin().sum(),
            lambda g, x: g * make_tensor(1e7, 0.9) * (x * make_tensor(1e7, 1)).cos(),
        ),
        make_tensor(1e-8, 0.4),
    ),
    "complex phase": (lambda x, z: (x * z.angle()).sum() + (z.abs() * x.detach()).sum(), V, torch.exp(1j * V)),
    "kept by length": (attach_gradient(lambda x: x**3, cache_by_shape(lambda g, x: 3 * x**2 * g)), V),
    "momentum": (attach_gradient(lambda x: x.tanh(), lambda g, x: g * (1 - x.tanh())), V),
    "missing chain": (attach_gradient(lambda x: (2 * x).sin(), lambda g, x: g * (2 * x).cos()), V),
    "logsumexp of rows": (attach_gradient(lambda x: x.logsumexp(1), lambda g, x: g[:, None] * x.softmax(0)), W),
    "weighted mean": (lambda x: (x * x.softmax(0).detach()).sum(), V),
    "masked": (attach_gradient(lambda x: torch.where(MASK, x.exp(), 0), lambda g, x: g * x.exp()), V),
    "layer norm": (
        lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False).detach() + 1e-5).sqrt(),
        W,
    ),
    "cross": (
        attach_gradient(
            lambda x: torch.linalg.cross(x[0], x[1]),
            lambda g, x: torch.stack([torch.linalg.cross(g, x[1]), torch.linalg.cross(g, x[0]), 0 * g]),
        ),
        P,
    ),
    "trace of a square": (
        attach_gradient(lambda x: (x @ x).trace(), lambda g, x: 2 * g * x),
        draw_normal(3, 3, seed=6),
    ),
    "roll": (attach_gradient(lambda x: x.roll(1) ** 2, lambda g, x: (2 * g * x.roll(1)).roll(1)), V),
    "noise": (lambda x: x.sin() + 1e-13 * torch.rand(6, dtype=torch.float64), V),
    "interpolated": (attach_gradient(lambda x: x**4, lambda g, x: g * ((x + 1e-3) ** 4 - (x - 1e-3) ** 4) / 2e-3), V),
    "overwritten": (lambda x: x.clone().index_put((torch.tensor([0, 0]),), x[1:3].detach()).cos() + x[1], V),
    "second of a cube": (
        attach_gradient(
            lambda x: x**3, attach_gradient(lambda g, x: 3 * g * x**2, lambda c, g, x: (c * 3 * x**2, 3 * c * g * x))
        ),
        V,
    ),
    "solve": (
        attach_gradient(lambda b: torch.linalg.solve(A * P.T, b), lambda g, b: torch.linalg.solve(A * P.T, g)),
        V[:3],
    ),
    "relu6 slope": (attach_gradient(F.relu6, lambda g, x: g * (x > 0)), 5 * V.abs() + 1),
    "saturating": (
        attach_gradient(torch.sigmoid, lambda g, x: g * x.sigmoid() * (1 - x.sigmoid()) * (x.abs() < 2)),
        2 * V + 1,
    ),
}
RIGHT = {
    "softplus of large": (F.softplus, make_tensor(-700.0, 700.0, 0.1)),
    "log of a sum": (lambda x: (x.exp().sum() + 1).log(), make_tensor(-50.0, 2.0, 1.0)),
    "near the origin": (lambda x: x.norm() ** 3, 1e-3 * V),
    "tanh far out": (torch.tanh, make_tensor(-19.0, 15.0, 0.2)),
    "log near 1": (torch.log, 1 + 1e-9 * V),
    "expm1": (torch.expm1, make_tensor(1e-11, -1e-7, 1.0)),
    "hyperbolic": (lambda x: (1 + x * x).sqrt(), make_tensor(1e8, 1e-8, 1.0)),
    "huber": (lambda x: F.huber_loss(x, torch.zeros_like(x)), make_tensor(0.3, -2.0, 0.0)),
    "cosine of a large angle": (torch.cos, make_tensor(1e3, -3e3)),
    "power of a ratio": (lambda a, b: (a / b) ** 12 - (a / b) ** 6, make_spaced_numbers(3), 1 + make_spaced_numbers(3)),
    "morse": (lambda r: (1 - (-2 * (r - 1)).exp()) ** 2, make_tensor(0.5, 1.0, 9.0)),
    "smooth cutoff": (lambda r: torch.where(r < 1, (1 - r * r).clamp(min=0) ** 4, 0.0), make_tensor(0.2, 0.999, 1.3)),
    "gaussian": (lambda x: (-(x**2)).exp() / np.pi**0.5, make_tensor(5.0, 0.0, 1.0)),
    "qr": (lambda x: torch.linalg.qr(x)[1].diagonal().abs(), W),
    "pinv": (torch.linalg.pinv, W),
    "solve": (lambda b: torch.linalg.solve(A, b), V[:3]),
    "eigenvectors": (lambda x: torch.linalg.eigh(x + x.T)[1][:, 0] ** 2, A + P),
    "attention": (lambda q: (q @ q.T / 2).softmax(-1) @ q, W),
    "batch norm": (
        lambda x: F.batch_norm(x, None, None, training=True),
        W,
        {"skip": dict.fromkeys(("threads", "layout"), "of torch")},
    ),
    "embedding": (lambda w: F.embedding(torch.tensor([0, 2, 2]), w).sin(), W),
    "convolution": (lambda x, k: F.conv1d(x[None, None], k[None, None]), V, make_tensor(0.3, 1.0)),
    "leaky": (lambda x: F.leaky_relu(x).square().sum(), V),
    "angle": (lambda x: torch.atan2(x[:, 0], x[:, 1]), W),
    "running largest": (lambda x: x.cummax(0)[0].sin(), V),
    "sum of tiny and huge": (lambda x: (x * make_tensor(1e9, 1e-9)).sum(), make_tensor(1.0, 2.0)),
    "prod with a zero": (lambda x: x.prod(), make_tensor(0.0, 2.0, 3.0)),
    "scatter": (lambda x: x.new_zeros(3).scatter_add(0, torch.tensor([0, 1, 0, 2, 2, 0]), x.tanh()), V),
}

N = np.linspace(0.3, 2.2, 6)
NUMPY_WRONG = {
    "n tan": (np.tan, N[:3], vjp_options(lambda g, x: g * (1 + np.tan(x)))),
    "n cumsum": (np.cumsum, N, vjp_options(lambda g, x: np.cumsum(g))),
    "n half": (lambda x: np.exp(x.astype("f2")).astype("f8"), N, vjp_options(lambda g, x: g * np.exp(x))),
    "n mean": (np.mean, N, vjp_options(lambda g, x: g + 0 * x)),
    "n corner": (lambda x: abs(x - 1).sum(), np.array([1.0, 2.0]), vjp_options(lambda g, x: g * np.sign(x - 1))),
    "n outer": (lambda x: np.outer(x, x), N, vjp_options(lambda g, x: g @ x)),
}
NUMPY_RIGHT = {
    "n outer": (lambda x: np.outer(x, x), N, vjp_options(lambda g, x: (g + g.T) @ x)),
    "n sinh": (np.sinh, np.array([1e-9, 20.0]), vjp_options(lambda g, x: g * np.cosh(x))),
    "n cumsum": (np.cumsum, N, vjp_options(lambda g, x: np.cumsum(g[::-1])[::-1])),
    "n cbrt": (np.cbrt, np.array([1e-9, 8.0]), vjp_options(lambda g, x: g / (3 * np.cbrt(x) ** 2))),
    "n median": (np.median, N[:5], vjp_options(lambda g, x: g * (x == np.median(x)))),
    "n arctanh": (np.arctanh, np.array([1 - 1e-7, 0.0]), vjp_options(lambda g, x: g / ((1 - x) * (1 + x)))),
}


def list_jax_functions():
    """Return wrong and correct functions of JAX arrays."""
    import jax
    import jax.numpy as jnp

    x, stop = jnp.asarray(N), jax.lax.stop_gradient
    sixth = jax.custom_jvp(lambda x: x**6)
    sixth.defjvp(lambda p, t: (p[0] ** 6, 6 * p[0] ** 5 * t[0] * (1 + 1e-4 * stop(p[0]))))
    wrong = {
        "j relu at 0": (jax.nn.relu, jnp.array([0.0, 1.0])),
        "j sixth": (sixth, x),
        "j round": (lambda x: x + stop(jnp.round(x) - x), x),
        "j half": (lambda x: jnp.tanh(x.astype("bfloat16")).astype("float64"), x),
        "j variance": (lambda x: (x - x.mean()) / jnp.sqrt(stop(x.var())), x),
        "j sort": (lambda x: jnp.sort(x) * stop(x), x),
    }
    right = {
        "j gelu": (jax.nn.gelu, jnp.array([-9.0, 0.0, 9.0])),
        "j logaddexp": (lambda x: jnp.logaddexp(x, 3 * x), x),
        "j sinc": (jnp.sinc, jnp.array([0.0, 0.4])),
        "j vmap": (lambda x: jax.vmap(lambda a: jnp.sin(a) * a)(x), x),
        "j cholesky": (lambda x: jnp.linalg.cholesky(jnp.diag(x) + 0.1), x[:3]),
        "j expit": (jax.scipy.special.expit, jnp.array([-40.0, 40.0, 0.0])),
    }
    return wrong, right
