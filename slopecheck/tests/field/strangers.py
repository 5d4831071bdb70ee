"""Functions as users might write them: wrong functions must not pass, correct functions must not fail.

Functions whose derivatives cannot be judged also count as wrong: functions that compute in float32 internally, and
functions at a kink. Correct functions are evaluated at difficult points. Each row has a function, its inputs, and
optionally options of `check_derivatives`. The functions of `field.unseen` were written when the checks were finished.
"""

import itertools
from functools import lru_cache

import numpy as np
import torch

from field.entry import attach_gradient, draw_normal, make_tensor
from field.entry import find_torch_verdict as verdict_of_torch
from slopecheck import check_derivatives

F = torch.nn.functional


def cache_by_shape(function):
    """Cache the first result of a function for each combination of argument shapes."""
    known = {}
    return lambda *arrays: known.setdefault(tuple(map(np.shape, arrays)), function(*arrays))


def make_spaced_numbers(*shape):
    return torch.linspace(0.3, 1.7, int(np.prod(shape)), dtype=torch.float64).reshape(shape)


class FunctionChangingAfterCalls:
    """A function whose results change by 1 % after a number of calls."""

    def __init__(self, function, calls):
        self.function, self.left = function, itertools.count(calls, -1)

    def __call__(self, x):
        return self.function(x) * (1 if next(self.left) > 0 else 1.01)


X, S, U = draw_normal(5), draw_normal(3, 3), make_spaced_numbers(4)
K = make_tensor(0.2, 1.0, -0.5)
KEPT2, KEPT3 = cache_by_shape(lambda x: -x.sin()), cache_by_shape(lambda x: -x.cos())  # results of the first call, at X
SLOPE2 = attach_gradient(lambda x: x.cos(), lambda g, x: g * KEPT2(x))
SINE3 = attach_gradient(lambda x: -x.sin(), lambda g, x: g * KEPT3(x))
SINE = attach_gradient(lambda x: x.sin(), lambda g, x: g * SLOPE2(x))
SLOPE3 = attach_gradient(lambda x: x.cos(), lambda g, x: g * SINE3(x))

WRONG = {
    "sine in float32": (lambda x: x.float().sin().double(), X),
    "product in float32": (lambda x: (x.float() @ x.float()).double(), S),
    "sum in float32": (lambda x: x.exp().float().sum().double(), X),
    "buffer of float32": (lambda x: torch.zeros(5).copy_(x**2).double(), X),
    "logarithm in float32": (lambda x: 0.3 * x.float().log1p().double() ** 2, U),
    "softmax in float32": (lambda x: 1.7 * x.float().softmax(-1).double(), S),
    "backward in float32": (attach_gradient(torch.sin, lambda g, x: (g.float() * x.float().cos()).double()), X),
    "weights in float32 and values": (lambda x: (x @ x.float().double()).sin(), S),
    "half precision": (lambda x: x.bfloat16().sin().double(), X),
    "1 beside 1e6": (
        attach_gradient(lambda x: x**2 / 2, lambda g, x: g * x * make_tensor(1.0, 1.5)),
        make_tensor(1e6, 1.0),
    ),
    "wave beside 1e6": (
        attach_gradient(lambda x: x.sin().sum(), lambda g, x: g * x.cos() * make_tensor(1, 2.0)),
        make_tensor(1e6, 1.0),
    ),
    "cosine beside 1e6": (
        attach_gradient(
            lambda x: 1e6 * x[0].sin() + x[1].cos(), lambda g, x: g * torch.stack([1e6 * x[0].cos(), -2 * x[1].sin()])
        ),
        make_tensor(0.3, 1.2),
    ),
    "1 beside 1e10": (
        attach_gradient(lambda x: (x * make_tensor(1e10, 1)).sum(), lambda g, x: g * make_tensor(1e14, 1.5)),
        make_tensor(0.3, 1.2),
    ),
    "logarithms far apart": (
        attach_gradient(torch.log, lambda g, x: g / x * make_tensor(1, 0.5, 1)),
        make_tensor(1e8, 1e-3, 2.0),
    ),
    "complex output": (lambda x: (x.sin(), torch.fft.fft(x.detach())), X),
    "complex input": (lambda x, z: (x * z.detach()).abs().sum(), U, U + 1j * U),
    "complex alone": (lambda x: torch.fft.fft(x.detach()), X),
    "magnitude at 0": (lambda x: x.abs(), make_tensor(1.0, 0.0, -2.0)),
    "norm at 0": (lambda x: x.norm(), torch.zeros(3, dtype=torch.float64)),
    "magnitude of one 0": (lambda x: x.abs().sum(), make_tensor(0.0)),
    "root of a square at 0": (
        attach_gradient(lambda x: (x * x).sqrt(), lambda g, x: g * x.sign()),
        make_tensor(0.0, 1.0),
    ),
    "two largest": (lambda x: x.amax(), make_tensor(1.0, 1.0, 0.5)),
    "distance of equal points": (lambda x: (x[0] - x[1]).norm() + x.sin().sum(), torch.ones(2, 3, dtype=torch.float64)),
    "x|x|, second derivative at 0": (lambda x: x * x.abs(), make_tensor(0.0, 1.0)),
    "kept second derivative": (SINE, X),
    "kept third derivative": (attach_gradient(torch.sin, lambda g, x: g * SLOPE3(x)), X, {"order": 3}),
    "kept gradient": (attach_gradient(torch.sin, cache_by_shape(lambda g, x: g * x.cos())), X, {"order": 1}),
    "sign": (attach_gradient(torch.sin, lambda g, x: -g * x.cos()), X),
    "softplus": (attach_gradient(F.softplus, lambda g, x: g * torch.sigmoid(-x)), X),
    "mean without history": (lambda x: (x - x.mean().detach()) / x.std(), X),
    "scale without history": (lambda x: (x - x.mean()) / x.std().detach(), X),
    "largest without history": (lambda x: (x - x.max()).exp().sum().log() + x.max().detach(), X),
    "running sum": (attach_gradient(lambda x: x.cumsum(0), lambda g, x: g.cumsum(0)), X),
    "transposed": (attach_gradient(lambda x: x @ S, lambda g, x: g @ S), draw_normal(3, 3, seed=1)),
    "mean of n": (attach_gradient(torch.mean, lambda g, x: g * torch.ones_like(x)), X),
    "clamp without mask": (attach_gradient(lambda x: x.clamp(-0.5, 0.5), lambda g, x: 1.0 * g), X),
    "another gelu": (
        attach_gradient(
            lambda x: F.gelu(x, approximate="tanh"),
            lambda g, x: g * (torch.special.ndtr(x) + x * (-x * x / 2).exp() / 2.5066282746310002),
        ),
        X,
    ),
    "four digits": (attach_gradient(torch.erf, lambda g, x: g * 1.128 * (-x * x).exp()), X),
    "without projection": (attach_gradient(lambda x: x / x.norm(), lambda g, x: g / x.norm()), X),
    "determinant": (attach_gradient(torch.det, lambda g, x: g * x.det() * x.inverse()), S),
    "inverse": (attach_gradient(torch.inverse, lambda g, x: x.inverse().T @ g @ x.inverse().T), S),
    "another dropout": (lambda x: x * (torch.rand(5) > 0.5), X),
    "changes its argument": (
        lambda x: x.mul_(2).sin() if not x.requires_grad else x.detach().mul_(2) + x - x.detach(),
        X,
    ),
    "powers without history": (
        attach_gradient(lambda x: x.relu() ** 3, lambda g, x: g * 3 * x.detach().relu() ** 2),
        X,
    ),
    "straight through": (lambda x: x + (x.round() - x).detach(), X),
    "clipped gradient": (attach_gradient(lambda x: x**2, lambda g, x: (2 * x * g).clamp(-1, 1)), X),
    "reversed gradient": (attach_gradient(lambda x: 1.0 * x, lambda g, x: -g), X),
    "convolution not turned": (
        attach_gradient(
            lambda x: F.conv1d(x[None, None], K[None, None], padding=1)[0, 0],
            lambda g, x: F.conv1d(g[None, None], K[None, None], padding=1)[0, 0],
        ),
        X,
    ),
    "gradient in float32": (attach_gradient(torch.sin, lambda g, x: (g * x.cos()).float()), X),
    "other after 300 calls": (FunctionChangingAfterCalls(torch.sin, 300), X),
    "strides": (lambda x: torch.as_strided(x, (9,), (1,)).sin(), S),
    "half of a symmetric matrix": (attach_gradient(lambda x: (x + x.T).sin(), lambda g, x: g * (x + x.T).cos()), S),
    "second derivative of a logistic": (
        attach_gradient(
            torch.sigmoid,
            lambda g, x: (
                g
                * attach_gradient(
                    lambda x: x.sigmoid() * (1 - x.sigmoid()), lambda c, x: c * x.sigmoid() * (1 - x.sigmoid())
                )(x)
            ),
        ),
        X,
    ),
}

RIGHT = {
    "logit": (torch.logit, make_tensor(1 - 1e-10, 0.5, 1e-10)),
    "log1p near -1": (lambda p: torch.log1p(-p), make_tensor(1 - 1e-12, 0.5)),
    "acos near 1": (torch.acos, make_tensor(1 - 1e-9, 0.5)),
    "asin near -1": (torch.asin, make_tensor(-1 + 1e-7, 0.1)),
    "log_softmax": (lambda x: x.log_softmax(-1), make_tensor(0.0, 1000.0, -1000.0)),
    "log_softmax of 30": (lambda x: x.log_softmax(-1), make_tensor(0.0, 30.0, 3.0)),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 2])), 50 * draw_normal(2, 3)),
    "root 1e-12": (lambda x: (x * x + 1e-12).sqrt(), make_tensor(0.0, 1.0)),
    "root 1e-14": (lambda x: (x * x + 1e-14).sqrt(), make_tensor(0.0, 1.0)),
    "root 1e-6": (lambda x: (x * x + 1e-6).sqrt(), make_tensor(0.0, 1.0)),
    "x|x|^1.5": (lambda x: x * x.abs() ** 1.5, make_tensor(0.0, 1.0), {"order": 1}),  # torch's second derivative is NaN
    "x|x|": (lambda x: x * x.abs(), make_tensor(0.0, 1.0), {"order": 1}),
    "x^3|x|": (lambda x: x**3 * x.abs(), make_tensor(0.0, 1.0)),
    "steep softplus": (lambda x: F.softplus(100 * x), X),
    "smooth l1": (lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), make_tensor(0.0, 0.5, 3.0)),
    "erfinv": (torch.erfinv, make_tensor(1 - 1e-9, 0.3)),
    "lgamma": (torch.lgamma, make_tensor(1e-8, 3.0)),
    "tangent": (torch.tan, make_tensor(np.pi / 2 - 1e-6, 0.3)),
    "power": (lambda x: x**0.1, make_tensor(1e-12, 1.0)),
    "entropy": (lambda x: torch.special.entr(x), make_tensor(1e-15, 0.3)),
    "singular values": (torch.linalg.svdvals, S),
    "close eigenvalues": (
        lambda x: torch.linalg.eigvalsh(x + x.T),
        torch.diag(make_tensor(1.0, 1.0001, 3.0)) + 1e-6 * S,
    ),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.T + 1e-6 * torch.eye(3)), draw_normal(3, 2)),
    "sinc": (torch.sinc, make_tensor(0.0, 0.3), {"order": 1}),  # torch's second derivative is NaN
    "logistic": (torch.sigmoid, make_tensor(-40.0, 40.0, 0.3)),
    "tiny vector": (lambda x: x.norm(), 1e-12 * X),
    "atan2": (torch.atan2, make_tensor(1e-10, 1.0), make_tensor(1e-10, -1.0)),
    "cumprod": (
        lambda x: x.cumprod(0),
        make_tensor(1e-8, 3.0, 1e4, 2.0),
        {"skip": {"float32": "torch loses all digits"}},
    ),
    "nearly equal": (torch.std, 1 + 1e-5 * X),
    "far tail": (lambda x: (-x * x).exp(), make_tensor(8.0, -7.0, 0.1)),
    "erfc": (torch.erfc, make_tensor(6.0, -6.0, 1.0)),
    "pooling": (lambda x: F.max_pool1d(x[None], 2), draw_normal(6)),
    "power spectrum": (lambda x: torch.fft.rfft(x).abs() ** 2, X),
    "eigenvalue of a general matrix": (lambda x: torch.linalg.eigvals(x @ x.T).real.sum(), S),
    "fifty iterations": (lambda a: [y := a * 0 + 1, *[y := (y + a / y) / 2 for _ in range(50)]][-1], U),
    "bessel function": (torch.special.i0, X, {"order": 1}),
    "log determinant": (lambda x: torch.slogdet(x)[1], S),
    "group norm": (lambda x: F.group_norm(x[None], 2), draw_normal(4, 3), {"skip": {"layout": "of torch"}}),
    "duplicates": (lambda x: torch.zeros(2, dtype=x.dtype).index_add(0, torch.tensor([0, 1, 0, 0, 1]), x.sin()), X),
    "remainder": (lambda x: (x % 0.7) ** 2, X),
    "safe where": (lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), 0.0), X),
    "largest subtracted": (lambda x: (x - x.max().detach()).exp().sum().log() + x.max().detach(), 100 * X),
    "constant": (lambda x: 0 * x + 3, X),
    "large offset": (lambda x: 1e6 + x.sin(), X),
    "quadrature": (
        lambda a: torch.trapezoid((a * make_spaced_numbers(40)).sin(), make_spaced_numbers(40)),
        make_tensor(0.7),
    ),
    "cosine similarity": (lambda a, b: F.cosine_similarity(a, b, 0), X, 2 * X + 1e-4 * X.flip(0)),
    "cross product": (torch.linalg.cross, S, S.flip(0)),
    "huge": (lambda x: (1e150 * x) ** 2, X),
    "kl": (lambda x: F.kl_div(x.log_softmax(0), X.softmax(0)), 3 * X),
    "matrix exponential": (torch.matrix_exp, S),
    "elu at 0": (F.elu, make_tensor(0.0, 1.0), {"order": 1}),
    "sizes apart": (lambda x: x.sin().sum(), make_tensor(1e6, 1.0)),
    "logarithms apart": (torch.log, make_tensor(1e8, 1e-3, 2.0)),
    "real part": (lambda x: (x * torch.exp(1j * x)).real, X),
    "silu": (F.silu, make_tensor(0.0, -30.0, 30.0)),
}


def newton_square_root(a, to=1e-9):
    """Return the square roots of numbers by Newton's method, each to the relative tolerance `to`."""
    y = np.ones_like(a) + a
    while not np.all(abs(y * y - a) <= to * a):
        y = np.where(abs(y * y - a) <= to * a, y, (y + a / y) / 2)
    return y


N, M = np.linspace(0.4, 1.9, 5), np.linspace(-1, 1.3, 9).reshape(3, 3)
ROOT = {"vjp": lambda x, g: (g[0] / (2 * np.sqrt(x[0])),), "order": 1}


def vjp_options(gradient):
    """Return options for a NumPy function of one input, given `gradient(cotangent, input)`."""
    return {"vjp": lambda x, g: (gradient(g[0], *x),), "order": 1}


NUMPY_WRONG = {
    "n float32": (lambda x: np.sin(x.astype("f4")).astype("f8"), N, vjp_options(lambda g, x: g * np.cos(x))),
    "n product": (np.prod, N, vjp_options(lambda g, x: g * np.prod(x) * x)),
    "n transposed": (lambda x: M @ x, M[0], vjp_options(lambda g, x: M @ g)),
    "n norm at 0": (np.linalg.norm, np.zeros(3), vjp_options(lambda g, x: 0 * x)),
    "n kept gradient": (np.sin, N, vjp_options(cache_by_shape(lambda g, x: g * np.cos(x)))),
    "n logaddexp": (lambda x: np.logaddexp(0, x), N, vjp_options(lambda g, x: g / (1 + np.exp(x)))),
    "n complex": (lambda x: (np.sin(x), np.exp(1j * x)), N, {"vjp": lambda x, g: (g[0] * np.cos(x[0]),), "order": 1}),
    "n ddof": (np.std, N, vjp_options(lambda g, x: g * (x - x.mean()) / np.std(x) / 4)),
    "n two largest": (np.max, np.array([1.0, 1.0]), vjp_options(lambda g, x: g * np.array([0.5, 0.5]))),
    "n factor of two": (lambda x: x @ x, N, vjp_options(lambda g, x: g * x)),
    "n wrong solver": (
        newton_square_root,
        N,
        {"vjp": lambda x, g: (g[0] / np.sqrt(x[0]),), "order": 1, "accuracy": 1e-8},
    ),
}
NUMPY_RIGHT = {
    "n solver": (newton_square_root, N, {**ROOT, "accuracy": 1e-8}),
    "n coarse solver": (lambda a: newton_square_root(a, 1e-6), N, {**ROOT, "accuracy": 1e-5}),
    "n log1p": (lambda x: np.log1p(-x), np.array([1 - 1e-11]), vjp_options(lambda g, x: -g / (1 - x))),
    "n norm": (np.linalg.norm, M, vjp_options(lambda g, x: g * x / np.linalg.norm(x))),
    "n interpolation": (
        lambda x: np.interp(x, [0, 1, 2], [0, 1, 4]),
        N,
        vjp_options(lambda g, x: g * np.where(x < 1, 1, 3)),
    ),
    "n hypot": (lambda x: np.hypot(x, 1e-7), np.array([0.0, 1.0]), vjp_options(lambda g, x: g * x / np.hypot(x, 1e-7))),
    "n sort": (np.sort, N[::-1].copy(), vjp_options(lambda g, x: g[np.argsort(np.argsort(x))])),
    "n arccosh": (np.arccosh, np.array([1 + 1e-10, 2]), vjp_options(lambda g, x: g / np.sqrt((x - 1) * (x + 1)))),
    "n zero": (lambda x: np.zeros(2), N, vjp_options(lambda g, x: 0 * x)),
}


@lru_cache
def list_jax_functions():
    """Return wrong and correct functions of JAX arrays."""
    import jax
    import jax.numpy as jnp

    def attach_jax_gradient(function, gradient):
        wrapped = jax.custom_vjp(function)
        wrapped.defvjp(lambda x: (wrapped(x), x), lambda x, g: (gradient(g, x),))
        return wrapped

    x, u = jnp.asarray(N), jnp.asarray(M)
    stop, single = jax.lax.stop_gradient, lambda x: x.astype("float32")
    wrong = {
        "j float32": (lambda x: jnp.sin(single(x)).astype("float64"), x),
        "j product in float32": (lambda x: (single(x) @ single(x)).astype("float64") * 0.7, u),
        "j magnitude at 0": (jnp.abs, jnp.array([0.0, 1.0])),
        "j two largest": (jnp.max, jnp.array([1.0, 1.0, 0.5])),
        "j mean": (lambda x: (x - stop(x.mean())) ** 2, x),
        "j complex": (lambda x: (jnp.sin(x), stop(jnp.exp(1j * x))), x),
        "j scan": (jax.jit(lambda x: jax.lax.scan(lambda c, a: (stop(c) * a, c), 1.0, x)[0]), x),
        "j where": (lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0), jnp.array([0.0, 1.0])),
        "j sine": (attach_jax_gradient(jnp.sin, lambda g, x: g * jnp.cos(x) * 1.0001), x),
        "j second": (attach_jax_gradient(jnp.exp, lambda g, x: g * stop(jnp.exp(x))), x),
        "j transposed": (attach_jax_gradient(lambda x: x @ u, lambda g, x: g @ u), u),
        "j norm": (lambda x: jnp.linalg.norm(x), jnp.zeros(2)),
    }
    right = {
        "j logsumexp": (jax.nn.logsumexp, jnp.array([0.0, 800.0, -30.0])),
        "j log_softmax": (jax.nn.log_softmax, jnp.array([0.0, 1000.0, -3.0])),
        "j softplus": (jax.nn.softplus, jnp.array([-40.0, 0.0, 40.0])),
        "j logit": (jax.scipy.special.logit, jnp.array([1 - 1e-10, 0.3])),
        "j acos": (jnp.arccos, jnp.array([1 - 1e-9, 0.3])),
        "j root": (lambda x: jnp.sqrt(x * x + 1e-12), jnp.array([0.0, 1.0])),
        "j scan": (jax.jit(lambda x: jax.lax.scan(lambda c, a: (c * a, c), 1.0, x)[0]), x),
        "j solve": (lambda a: jnp.linalg.solve(a + 2 * jnp.eye(3), jnp.ones(3)), u),
        "j mean": (lambda x: (x - x.mean()) ** 2, x),
    }
    return wrong, right


def list_framework_functions(module, framework):
    """Return the wrong and the correct functions of a module for a framework."""
    if framework == "jax":
        return module.list_jax_functions()
    return {"torch": (module.WRONG, module.RIGHT), "numpy": (module.NUMPY_WRONG, module.NUMPY_RIGHT)}[framework]


def check_function_row(row):
    """Check a row of a table; return the verdict and the result."""
    function, *inputs = row
    options = inputs.pop() if isinstance(inputs[-1], dict) else {}
    result = check_derivatives(function, tuple(inputs), raises=False, **options)
    return result.verdict, result


def find_framework_verdict(row, framework):
    """Return "passed" or "failed": the verdict of torch's gradcheck and gradgradcheck, or of JAX's check_grads."""
    function, *inputs = row
    order = min(inputs.pop().get("order", 2), 2) if isinstance(inputs[-1], dict) else 2
    if framework == "torch":
        checks = (torch.autograd.gradcheck, torch.autograd.gradgradcheck)[:order]
        passed = all(verdict_of_torch(check, function, inputs) == "**passes it**" for check in checks)
        return "passed" if passed else "failed"
    from jax.test_util import check_grads

    try:
        check_grads(function, tuple(inputs), order, modes=["rev"])
    except Exception:
        return "failed"
    return "passed"


@lru_cache  # cached because two pages use the verdicts; the tables of the modules do not change
def list_tool_verdicts(module, framework, tool):
    """Return the verdicts of a tool on the wrong and on the correct functions of a module."""
    judged = find_framework_verdict if tool != "check_derivatives" else lambda row, _: check_function_row(row)[0]
    return tuple(
        [judged(row, framework) for row in table.values()] for table in list_framework_functions(module, framework)
    )


def make_verdict_count_rows(modules):
    """Yield table rows by framework and tool: the counts of verdicts on wrong and correct functions of the modules."""
    tools = {"torch": ("check_derivatives", "gradcheck, gradgradcheck"), "numpy": ("check_derivatives",)}
    for framework, names in {**tools, "jax": ("check_derivatives", "check_grads")}.items():
        for tool in names:
            wrong, right = ([v for m in modules for v in list_tool_verdicts(m, framework, tool)[k]] for k in (0, 1))
            yield (
                f"{framework}: {len(wrong)} wrong, {len(right)} correct",
                f"`{tool.replace(', ', '`, `')}`",
                *(str(wrong.count(v)) for v in ("failed", "inconclusive", "passed")),
                *(str(right.count(v)) for v in ("passed", "inconclusive", "failed")),
            )
