"""A lock that stays usable after a fork and after an exception in a signal handler."""

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


class ForkSafeLock:
    """Lock that is free in a forked child process, which lacks the thread that held the lock.

    The lock is reentrant, so that signal handlers and finalizers may call operators.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, Any] = {}  # one lock per process, created at the first use

    def call_while_held(self, function: Callable[[], R]) -> R:
        """Call a function while this thread holds the lock, and return its result.

        Unlike ``with lock:``, this method releases the lock even if a signal handler raises an exception: Python 3.14
        may raise the exception after it has acquired the lock and before the block begins.
        """
        lock = self._by_process.setdefault(os.getpid(), threading.RLock())
        try:
            lock.acquire()
            return function()
        finally:
            try:  # noqa: SIM105, because a handler might raise while `suppress` is called
                lock.release()
            except RuntimeError:  # the lock was not acquired
                pass
