"""Tests of thread numbers, calls from several Python threads, forked processes, and CPU levels."""

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from programs import run_command
from table_calls import CPU_BACKENDS, OPS, assert_raises, assert_same_bits, compute_fields, draw_operator_arguments

import trigraph
from trigraph import get_num_threads, set_num_threads
from trigraph.fortran import levels
from trigraph.table import DEFINITIONS, SYMBOLS

TIMEOUT = 60  # seconds after which a hanging process fails the test


def draw_large_arguments(op, seed=0, dtype=np.float64, nodes=9):
    """Return arguments whose sums by source and by destination consist of several chunks of 256 terms."""
    entities = {"num_positions": 3000, "num_edges": 2600}
    sizes = {s: entities.get(s, nodes) for s in op.definition.symbols if SYMBOLS[s].minimum == 0}
    return draw_operator_arguments(op, dtype, seed=seed, **sizes)


def test_set_num_threads_accepts_only_positive_integers():
    for number in (1, 2, 7, np.int32(3)):
        set_num_threads(number)
        assert get_num_threads() == number
        assert type(get_num_threads()) is int
    for bad in (2.0, "2", None, True, np.array([2])):
        text = f"set_num_threads: num_threads is a {type(bad).__name__}; expected an int"
        assert_raises(TypeError, text, set_num_threads, bad)
    for bad in (0, -1):
        assert_raises(ValueError, f"set_num_threads: num_threads is {bad}; expected at least 1", set_num_threads, bad)
    assert get_num_threads() == 3


VALID_NUMBERS = {"3": 3, "2,4": 2, " 5 ": 5}
INVALID_NUMBERS = ["0", "", "many", "-1", "²", "100000", "9" * 5000]


@pytest.mark.parametrize("setting", [*VALID_NUMBERS, *INVALID_NUMBERS], ids=lambda s: s[:9])
def test_default_num_threads_follows_environment(setting, monkeypatch, recwarn):
    """Invalid values of OMP_NUM_THREADS are ignored; a number above the limit causes a warning."""
    from trigraph.fortran import threads

    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    default, warned = threads._choose_default_threads(), [str(w.message) for w in recwarn]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default == VALID_NUMBERS.get(setting, threads._choose_default_threads())
    assert default >= 1
    number = setting if len(setting) < 20 else "a number of 5000 digits"
    text = f"OMP_NUM_THREADS is {number}; trigraph runs at most "
    assert [w[: len(text)] for w in warned] == ([text] if len(setting) > 5 else [])


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_simultaneous_calls_equal_single_calls(backend):
    size = draw_large_arguments if backend == "fortran" else draw_operator_arguments  # only "fortran" uses chunks
    jobs = [(op, size(op, seed=seed)) for op in OPS for seed in range(3)]
    set_num_threads(2)
    expected = [compute_fields(op, values, backend=backend) for op, values in jobs]
    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(compute_fields, op, values, backend=backend) for op, values in jobs * 2]
        for future, result in zip(futures, expected * 2, strict=True):
            assert_same_bits(future.result(TIMEOUT), result)


def capture_script_output(script, **environment):
    """Run a script in a new process, which must end within TIMEOUT; return the words that it prints."""
    words = ["-W", "error", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    return run_command(sys.executable, *words, env=variables, timeout=TIMEOUT).stdout.split()


RESULTS_PROGRAM = textwrap.dedent("""
    import os
    import numpy as np
    import trigraph
    from table_calls import OPS, compute_fields, draw_operator_arguments

    values = [(op, draw_operator_arguments(op, num_edges=700, num_positions=900)) for op in OPS]

    def results():
        return [{n: v.tobytes() for n, v in compute_fields(op, given).items()} for op, given in values]

    trigraph.set_num_threads(2)
    expected = results()  # starts OpenMP's threads
""")


def test_forked_children_compute_on_one_thread():
    """A child of os.fork or multiprocessing is limited to one thread; the parent keeps its number of threads."""
    script = """
        import multiprocessing

        def work(number):
            return results() == expected, trigraph.get_num_threads()

        pid = os.fork()
        if pid == 0:
            right = work(0) == (True, 1)
            trigraph.set_num_threads(1)
            try:
                trigraph.set_num_threads(2)
            except RuntimeError as error:
                right = right and str(error).startswith("set_num_threads: num_threads is 2; expected 1 in a forked pro")
                os._exit(0 if right and results() == expected else 1)
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), trigraph.get_num_threads(), results() == expected)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(set(pool.map(work, range(4))) == {(True, 1)})
        print(results() == expected)
    """
    assert capture_script_output(RESULTS_PROGRAM + textwrap.dedent(script)) == ["0", "2", "True", "True", "True"]


@pytest.mark.parametrize("first", ["operator", "torch"])
def test_torch_computes_in_forked_children(first):
    """torch shares its OpenMP threads with the operators, and works in a forked child; the parent keeps its threads."""
    pytest.importorskip("torch", reason="torch is not installed")
    script = """
        import ctypes, multiprocessing, os, sys
        import numpy as np, torch, trigraph

        trigraph.get_cpu_level()  # loads the fast path and what it shares with torch
        if not hasattr(ctypes.CDLL(None), "omp_pause_resource_all"):
            sys.exit(print("old"))

        def operator():
            return trigraph.gno_kernel_fwd(np.ones((4000, 2)), np.ones(2*64 + 64 + 64 + 1), f_in=1, f_out=1).sum()

        def exponentials():
            return torch.ones(10**6).exp().double().sum().item()

        def work():
            sys.exit((exponentials(), operator()) != expected)

        trigraph.set_num_threads(2)
        torch.set_num_threads(2)
        calls = {"torch": exponentials, "operator": operator}
        calls[FIRST]()
        started = len(os.listdir("/proc/self/task"))
        expected = exponentials(), operator()
        for _ in range(3):
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join(15)
            child.kill()
            print(child.exitcode)
            calls[FIRST]()
            print(len(os.listdir("/proc/self/task")) - started, torch.get_num_threads())
    """
    lines = capture_script_output(f"FIRST = {first!r}" + textwrap.dedent(script))
    if lines == ["old"]:
        pytest.skip("torch has an OpenMP library older than GCC 9's")
    assert lines == ["0", "0", "2"] * 3


def test_fork_handlers_can_call_operators():
    """In a forked child, operators can be called even before the fork handlers of libraries have run."""
    source = """
        import os
        os.register_at_fork(after_in_child=lambda: ran.append(operator()))  # before trigraph registers anything
        import numpy as np, trigraph

        ran = []
        operator = lambda: trigraph.gno_kernel_fwd(np.ones((4000, 2)), np.ones(2*64 + 64 + 64 + 1), f_in=1, f_out=1)
        trigraph.set_num_threads(2)
        expected = operator()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if np.array_equal(ran[0], expected) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert done.communicate(timeout=TIMEOUT)[0].split() == ["0"]
    finally:
        if done.poll() is None:
            os.killpg(done.pid, signal.SIGKILL)  # also kill a child that hangs


def test_a_small_call_starts_no_thread_until_a_number_is_set():
    script = """
        import os
        import numpy as np
        import trigraph

        def started(num_edges):
            before = len(os.listdir("/proc/self/task"))
            trigraph.basis_embedding_radial_fwd(np.ones((num_edges, 8)), np.ones((16, 8)))  # 256 + 16 for an edge
            return len(os.listdir("/proc/self/task")) - before

        few = trigraph.fortran.threads.LITTLE_WORK // (256 + 16)
        print(started(few), started(few + 1))
        with trigraph.fortran.threads.restore_num_threads():  # as the verification does
            trigraph.set_num_threads(5)
        print(trigraph.get_num_threads(), trigraph.fortran.threads.choose_num_threads(1))
        trigraph.set_num_threads(3)
        print(started(1))
    """
    assert capture_script_output(script, OMP_NUM_THREADS="2") == ["0", "1", "2", "1", "1"]


def test_one_thread_call_keeps_the_team():
    """A call with one thread keeps a team of two alive: if new stacks are refused, two threads run, but not three."""
    script = """
        import resource
        import numpy as np
        import trigraph

        def run_command(threads):
            trigraph.set_num_threads(threads)
            try:
                trigraph.basis_embedding_radial_fwd(np.ones((50, 8)), np.ones((16, 8)))
            except MemoryError:
                return "refused"
            return "ran"

        print(run_command(2), run_command(1))
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**21, resource.RLIM_INFINITY))
        print(run_command(2), run_command(1), run_command(3))
    """
    ran = capture_script_output(script, GLIBC_TUNABLES="glibc.pthread.stack_cache_size=0", OPENBLAS_NUM_THREADS="1")
    assert ran == ["ran", "ran", "ran", "ran", "refused"]


def test_set_num_threads_refuses_numbers_above_limit():
    """set_num_threads rejects numbers above a limit, since OpenMP exits if it cannot start its threads."""
    from trigraph.fortran.threads import MOST

    assert max(16, os.cpu_count()) <= MOST <= max(16, 8 * os.cpu_count())
    set_num_threads(MOST)
    for bad in (MOST + 1, 100_000, 2**31, 2**63):
        text = f"set_num_threads: num_threads is {bad}; expected at most {MOST}"
        assert_raises(ValueError, text, set_num_threads, bad)
    assert get_num_threads() == MOST
    op = OPS[0]
    values = draw_large_arguments(op)
    expected = compute_fields(op, values)
    set_num_threads(1)
    assert_same_bits(compute_fields(op, values), expected)


# CPU levels of the fast path: the default, other levels, and bitwise equality of v3 and v4.

AVAILABLE = levels.list_runnable_levels()
LEVEL_PROGRAM = "import trigraph; print(trigraph.get_cpu_level())"


@pytest.fixture(autouse=True)
def restore_cpu_level():
    before = trigraph.get_cpu_level()
    yield
    trigraph.set_cpu_level(before)


def test_the_highest_level_of_the_processor_is_the_default():
    from trigraph.fortran import _reference

    level = _reference.cpu_level()
    assert level in range(5)
    everything = tuple(f"v{n}" for n in range(2, level + 1)) or ("base",)
    assert everything[-len(AVAILABLE) :] == AVAILABLE  # wheels also contain v2; a plain build has only one level
    if levels.ENVIRONMENT not in os.environ:
        assert capture_script_output(LEVEL_PROGRAM) == [AVAILABLE[-1]]


def test_unsupported_processor_raises_import_error(monkeypatch):
    monkeypatch.setattr(levels, "_chosen", None)
    monkeypatch.setattr(levels, "list_runnable_levels", lambda: ())
    with pytest.raises(ImportError, match=rf"that this processor can run; built are .*{AVAILABLE[-1]}\. Build from"):
        trigraph.get_cpu_level()


@pytest.mark.parametrize("level", AVAILABLE)
def test_cpu_level_is_set_in_python(level):
    trigraph.set_cpu_level(level)
    assert trigraph.get_cpu_level() == level
    assert levels.fast_module().__name__ == f"trigraph.fortran._fast_{level}"
    kernel = trigraph.gno_kernel_fwd(np.ones((3, 2)), np.ones(2 * 3 + 1 * 3), f_in=1, f_out=1)
    assert kernel.shape == (3, 1)


@pytest.mark.parametrize("level", AVAILABLE)
def test_cpu_level_follows_environment(level):
    assert capture_script_output(LEVEL_PROGRAM, **{levels.ENVIRONMENT: level}) == [level]


def test_levels_that_cannot_run_are_refused():
    expected = f"set_cpu_level: level is 'v9'; expected one of {', '.join(AVAILABLE)}, which this processor can run"
    assert_raises(ValueError, expected, trigraph.set_cpu_level, "v9")
    assert_raises(TypeError, "set_cpu_level: level is a int; expected a string", trigraph.set_cpu_level, 3)
    done = run_command(sys.executable, "-c", LEVEL_PROGRAM, env=os.environ | {levels.ENVIRONMENT: "v9"}, status=1)
    assert f"ValueError: {levels.ENVIRONMENT} is 'v9'; expected one of" in done.stderr


def draw_arguments_of_any_size(op, seed):
    """Return arguments of random sizes; odd seeds scale the rows by widely different factors."""
    rng = np.random.default_rng(seed)
    limits = {s: op.definition.get_limited_symbol(s) for s in op.definition.symbols}
    sizes = {s: int(rng.integers(max(limit.minimum, 1), limit.maximum or 40)) for s, limit in limits.items()}
    sizes |= {s: int(rng.integers(1, 500)) for s in op.definition.symbols if not SYMBOLS[s].minimum}
    values = draw_operator_arguments(op, (np.float32, np.float64)[seed // 2 % 2], seed=seed, **sizes)
    if seed % 2:
        scaled = [
            a for a in op.select_present_arguments(values) if not (a.given_back or a.index) and a.dims[0] in SYMBOLS
        ]
        for a in scaled:
            factors = 10.0 ** rng.uniform(-8, 0, len(values[a.name])).reshape(-1, *[1] * (len(a.dims) - 1))
            values[a.name] = (values[a.name] * factors).astype(values[a.name].dtype)
    return values


def assert_equal_on_levels(op, values):
    results = []
    for level in levels.EQUAL_BITS:
        trigraph.set_cpu_level(level)
        results.append(compute_fields(op, values))
    assert_same_bits(*results)


BOTH_LEVELS = pytest.mark.skipif(not {*levels.EQUAL_BITS} <= {*AVAILABLE}, reason="the processor lacks a level")


@BOTH_LEVELS
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_v3_and_v4_give_equal_bits(definition):
    """The levels v3 and v4 give bitwise identical results for random sizes that `trigraph verify` does not test."""
    for op in (o for o in OPS if o.definition is definition):
        for seed in range(8):
            assert_equal_on_levels(op, draw_arguments_of_any_size(op, seed))


@BOTH_LEVELS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("heads", "width"), [(4, 16), (2, 32), (1, 64), (8, 8), (4, 8)])
def test_levels_agree_for_grouped_heads(heads, width, dtype):
    for op in (o for o in OPS if o.definition.name == "mha_gat_n2n"):
        assert_equal_on_levels(op, draw_operator_arguments(op, dtype, num_heads=heads, dim_head=width))
