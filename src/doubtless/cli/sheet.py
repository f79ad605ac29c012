"""Drawing with rich: paragraphs that are wrapped under their own beginning, values cut to a width, times of day.

rich is loaded here and nowhere else; this module is loaded when something is drawn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from io import StringIO
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .reporting import plain
from .typed import moment

WIDTH = 100
"""Columns of a picture that goes to a file or a pipe."""


class Sheet:
    """Lines of a picture, collected: text that is wrapped under its own beginning."""

    def __init__(self, width: int | None = None) -> None:
        terminal = sys.stdout.isatty()
        if width is None:
            width = Console(file=sys.stdout).width if terminal else WIDTH
        self.width = max(width, 40)
        self._file = StringIO()
        self._console = Console(
            file=self._file, width=self.width, force_terminal=terminal, color_system="standard" if terminal else None,
            highlight=False, markup=False, emoji=False, legacy_windows=False,
        )  # fmt: skip

    def line(self, text: str = "", style: str = "", *, lead: str = "", lead_style: str = "") -> None:
        """One paragraph; what does not fit goes on below `text`, behind the width of `lead`."""
        words = Text(plain(text), style=style)
        if not lead:
            self._console.print(words, overflow="fold")
            return
        lead = plain(lead)
        table = Table.grid(padding=0)
        table.add_column(width=cell_len(lead), no_wrap=True)
        table.add_column(overflow="fold", max_width=max(self.width - cell_len(lead), 16))
        table.add_row(Text(lead, style=lead_style), words)
        self._console.print(table)

    def command(self, text: str, lead: str = "    ") -> None:
        """A command to type: never broken, so that it can be copied."""
        self._console.print(Text.assemble((lead, "dim"), (plain(text), "bold")), soft_wrap=True)

    def title(self, *parts: str | tuple[str, str]) -> None:
        """A line of parts, each with a style of its own."""
        self._console.print(Text.assemble(*parts), overflow="fold")

    def text(self) -> str:
        """What was drawn, without trailing spaces."""
        return "\n".join(line.rstrip() for line in self._file.getvalue().rstrip("\n").split("\n"))


def shorten(text: str, room: int) -> str:
    """A text of at most so many terminal columns."""
    if cell_len(text) <= room:
        return text
    while text and cell_len(text) > room - 1:
        text = text[: -max(1, (cell_len(text) - room) // 2)]
    return f"{text}…"


def short_json(value: Any, room: int = 100) -> str:
    """A value as JSON, cut where it grows too long."""
    return shorten(json.dumps(value, ensure_ascii=False), room)


def call_text(name: str, params: Any, room: int = 400) -> str:
    """A call as one would write it: ``create(day="d", amount=5)``."""
    if not isinstance(params, Mapping):
        return f"{name}({short_json(params, room)})"
    return f"{name}({shorten(', '.join(f'{key}={short_json(value)}' for key, value in params.items()), room)})"


def clock(us: int, day: object = None, *, fine: bool = False) -> str:
    """A time of day, `fine` to the millisecond; with its date where that is another than the picture's."""
    when = moment(us)
    told = f"{when:%H:%M:%S}" + (f".{when.microsecond // 1000:03}" if fine else "")
    return told if day is None or when.date() == day else f"{when:%Y-%m-%d} {told}"


__all__ = ["Sheet", "call_text", "cell_len", "clock", "short_json", "shorten"]
