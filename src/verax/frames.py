"""Results as tables elsewhere: a data frame of the library that is installed, or a plain HTML table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

from verax.errors import ExtraMissing


def to_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Columns as a data frame of pandas, else of polars, else as a pyarrow table.

    >>> list(to_frame({"agent": ["ann"], "score": [0.5]}).columns)
    ['agent', 'score']
    """
    for library, make in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")):
        try:
            frame = getattr(import_module(library), make)
        except ImportError:
            continue
        return frame(dict(columns))
    raise ExtraMissing("Data frames", "parquet")


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a notebook, everything in it escaped.

    >>> html_table("paid", ["agent"], [["<b>"]])
    '<table><caption>paid</caption><tr><th>agent</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    cells = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>"]
    cells += [f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows]
    return f"<table><caption>{escape(caption)}</caption>{''.join(cells)}</table>"
