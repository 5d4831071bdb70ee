"""Utilities of all commands: text that any terminal can show, options with finite numbers, and exit on signals."""

import io
import math
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.console import Console

# Width of output to a file or a pipe, which no table exceeds; COLUMNS overrides it as usual.
UNLIMITED = 240


class FiniteFloatRange(click.FloatRange):
    """A `click.FloatRange` that also rejects NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail as other click types do."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def escape_unprintable(text: str) -> str:
    r"""Escape control and unprintable characters, as ``\x1b`` and ``\udc80``, but not new lines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def print_escaped(text: object, err: bool = False) -> None:
    """Print a line that may contain arbitrary text, such as file names and messages of exceptions."""
    click.echo(escape_unprintable(str(text)), err=err)


def make_escaping_console(stderr: bool = False) -> "Console":
    """Return a console that escapes unprintable text, and prints whole tables if the output is not a terminal."""
    from rich.console import Console
    from rich.segment import Segment

    class EscapingConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(escape_unprintable(segment.text), segment.style)

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError  # rich's own method would exit before the report of the run is written

    console = EscapingConsole(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNLIMITED
    return console


def format_pass_mark(console: "Console", passed: bool | None) -> str:
    """Return a coloured tick or cross, or ASCII if the encoding requires it; a dash for None."""
    if passed is None:
        return "-"
    if console.options.ascii_only:
        return "ok" if passed else "[bold red]x[/]"
    return "[green]✓[/]" if passed else "[bold red]✗[/]"


@contextmanager
def _treat_signals_like_ctrl_c() -> Iterator[list[int]]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, unless they are ignored; received signals are appended to the list.

    Code that cleans up and ends its child processes on KeyboardInterrupt then also does so on these signals.
    """
    came: list[int] = []

    def interrupt_on_signal(number: int, frame: Any) -> None:
        came.append(number)
        interrupt = signal.getsignal(signal.SIGINT)  # distinguishes Ctrl-C from a user's KeyboardInterrupt
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)

    main = threading.current_thread() is threading.main_thread()
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
    numbers = [n for n in signals if main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt_on_signal)
    try:
        yield came
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _flush_or_discard(stream: Any) -> None:
    """Flush a stream; if that fails, redirect it to the null device, because the flush at exit would fail again."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class CommandGroup(click.Group):
    """Commands that exit with one line and a status where click or Python would print a traceback.

    Characters that the encoding of an output lacks are escaped. The status is 1 if an output or a file cannot be used
    (without a message for a closed pipe, as in click). After a signal it is 128 plus the signal's number.
    """

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> NoReturn:
        """Run the command named by the arguments, and exit; parameters are those of `click.Command.main`.

        Commands find the arguments in ``Context.obj``.
        """
        streams = (sys.stdout, sys.stderr)
        for stream in streams:
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        status, line = 1, ""
        try:
            with _treat_signals_like_ctrl_c() as came:
                words = sys.argv[1:] if args is None else list(args)
                status = super().main(words, *more, **{**options, "standalone_mode": False, "obj": words}) or 0
            if streams[0] is not None:
                streams[0].flush()
        except (click.Abort, KeyboardInterrupt):
            number = signal.Signals(came[0] if came else signal.SIGINT)
            status, line = 128 + number, f"Ended by {number.name}"
        except click.ClickException as error:
            error.message = escape_unprintable(error.message)  # type: ignore[misc]
            status = error.exit_code
            with suppress(OSError):
                error.show()
        except OSError as error:
            status = 1
            if not isinstance(error, BrokenPipeError):
                line = f"Error: {error.filename or 'the output'} cannot be used: {error.strerror or error}"
        finally:  # even if click exits because of a closed pipe
            with suppress(OSError):
                if line:
                    print_escaped(line, err=True)
            for stream in streams:
                _flush_or_discard(stream)
        sys.exit(status)
