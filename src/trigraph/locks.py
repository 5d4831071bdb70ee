"""A lock that neither a fork nor an exception of a signal handler leaves locked."""

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


class Lock:
    """A lock that is open in a forked child, which lacks the thread that held it.

    It is reentrant, so that signal handlers and finalizers may call operators.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, Any] = {}  # created at the first use in a process

    def hold(self, function: Callable[[], R]) -> R:
        """Return what the function returns, called while this thread holds the lock.

        An exception in a signal handler cannot leave it locked. With ``with lock:`` it can in Python 3.14, which may
        raise the exception when the lock is acquired and the block has not begun.
        """
        lock = self._by_process.setdefault(os.getpid(), threading.RLock())
        try:
            lock.acquire()
            return function()
        finally:
            try:  # noqa: SIM105, since a handler might raise while `suppress` is called
                lock.release()
            except RuntimeError:  # it was not acquired
                pass
