"""Restore signals to the state that a terminal leaves."""

import signal

import pytest


@pytest.fixture
def unignored_signals():
    """Handle signals that this process ignores, as under `nohup make test &`, and let its children handle them."""
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
