"""Results as tables elsewhere: a data frame of the library that is installed, or a plain HTML table."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verax.errors import OptionError


def to_frame(columns: Mapping[str, Sequence[Any]], backend: str | None = None) -> Any:
    """Columns as a data frame of pandas, polars or pyarrow: of the one asked for, or the first that is installed.

    >>> list(to_frame({"agent": ["ann"], "score": [0.5]}, "pyarrow").column_names)
    ['agent', 'score']
    """
    import narwhals as nw

    for name in ("pandas", "polars", "pyarrow") if backend is None else (str(backend),):
        try:
            importlib.import_module(name)  # narwhals may remember one that is there no more
            return nw.from_dict(dict(columns), backend=name).to_native()
        except ImportError:
            continue
        except (TypeError, ValueError):
            break
    raise OptionError(f"no data frame of {backend or 'pandas'!r}; install pandas, polars or pyarrow")


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a notebook, everything in it escaped.

    >>> html_table("paid", ["agent"], [["<b>"]])
    '<table><caption>paid</caption><tr><th>agent</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    from html import escape

    cells = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>"]
    cells += [f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows]
    return f"<table><caption>{escape(caption)}</caption>{''.join(cells)}</table>"
