"""How a notebook shows things: small tables in HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def table(title: str, rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    """Give a table in which every text stands as it is, whatever it looks like."""
    line = lambda cells, tag: "<tr>" + "".join(f"<{tag}>{escape(x)}</{tag}>" for x in cells) + "</tr>"
    body = "".join(line(cells, "td") for cells in rows)
    return f"<table><caption>{escape(title)}</caption>{line(head, 'th') if head else ''}{body}</table>"
