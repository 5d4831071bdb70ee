"""A fixture that restores the signal handlers of a process started from a terminal."""

import signal

import pytest


@pytest.fixture
def default_signal_handlers():
    """Restore the default handlers of signals that are ignored under `nohup make test &`, also for child processes."""
    defaults = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    ignored = [number for number in defaults if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, defaults[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
