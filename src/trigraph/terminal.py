"""What every command of the command line shares: texts that any terminal can show, numbers that are finite."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Finite", "mark", "plain", "plain_console", "say"]

# Lines of a file or a pipe are as long as tables need; COLUMNS overrides it, as everywhere.
UNLIMITED = 240


class Finite(click.FloatRange):
    """A range of numbers that refuses what click's lets through: NaN, and infinity where there is no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail as every type of click does."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


def plain(text: str) -> str:
    r"""Escape what a terminal would obey or cannot show, as ``\x1b`` and ``\udc80``; new lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def say(text: object, err: bool = False) -> None:
    """Print a line that may hold texts of others: names of files, what exceptions say."""
    click.echo(plain(str(text)), err=err)


def plain_console(stderr: bool = False) -> Console:
    """Return a console that shows whole tables when it is no terminal, and every text as `plain` does."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(plain(segment.text), segment.style)

    console = Plain(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNLIMITED
    return console


def mark(console: Console, passed: bool | None) -> str:
    """Return a coloured tick or cross, or what an encoding without them has for it; a dash for None."""
    if passed is None:
        return "-"
    if console.options.ascii_only:
        return "ok" if passed else "[bold red]x[/]"
    return "[green]✓[/]" if passed else "[bold red]✗[/]"
