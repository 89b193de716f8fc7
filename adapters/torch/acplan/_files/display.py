"""Shows acplan's values in a notebook, and turns them into tables of pandas."""

import html
import importlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from acplan._base.errors import AcplanError

Rows = Sequence[Mapping[str, Any]]
Points = Sequence[tuple[float, float]]

# Fillers, selectors of variants and what is kept free for such, as the program escapes them.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0"
    "\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_WIDTH, _HEIGHT, _MARGIN_LEFT, _MARGIN_BELOW = 560, 150, 70, 22


def size(count: float) -> str:
    """Returns a number of bytes as the program writes it, such as 9.27 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def plain(text: object) -> str:
    """Escapes characters that move a terminal's cursor, turn its text around or are not seen,
    as in names of files that others wrote."""
    return "".join(ascii(c)[1:-1] if _is_unseen(c) else c for c in str(text))


def _is_unseen(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") or bool(_UNSEEN.match(c))


def to_pandas(rows: Rows) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        raise AcplanError("to_pandas needs pandas: pip install 'acplan[pandas]'") from None
    return pandas.DataFrame(list(rows))


def page(title: str, facts: Mapping[str, object], *parts: str) -> str:
    """Returns a title, the facts in words, and charts or tables below."""
    words = " · ".join(
        f"{html.escape(name)} <b>{html.escape(str(value))}</b>" for name, value in facts.items()
    )
    return (
        f'<div class="acplan"><div><b>{html.escape(plain(title))}</b></div>'
        f"<div>{words}</div>{''.join(parts)}</div>"
    )


def table(rows: Rows, most: int = 12) -> str:
    """Returns a table of the first rows, and a line with the number of rows left out."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(_heading(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(_cell(name, v))}</td>" for name, v in row.items())
        + "</tr>"
        for row in rows[:most]
    )
    more = f"<div>and {len(rows) - most:,} more</div>" if len(rows) > most else ""
    return (
        f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )


def _heading(name: str) -> str:
    """Returns the words of a key, with the unit of its values if the cells do not have it."""
    stem, _, unit = name.rpartition("_")
    if unit in ("ms", "s"):
        name = f"{stem} ({unit})"
    return name.removesuffix("_bytes").replace("_", " ")


def _cell(name: str, value: object) -> str:
    if isinstance(value, (int, float)) and name.endswith("bytes"):
        return size(value)
    if isinstance(value, float) and name in ("overhead", "gap"):
        return f"{value:.2%}"
    return f"{value:.4g}" if isinstance(value, float) else plain(value)


def own_chart(label: str, series: Mapping[str, Points], line: float | None = None) -> str:
    """Returns a chart of lines over a common axis, from 0 bytes up. `line` is the bytes of a
    horizontal line."""
    points = [point for curve in series.values() for point in curve]
    if not points:
        return ""
    widest = max(x for x, _ in points) or 1
    narrowest = min(x for x, _ in points)
    highest = max([y for _, y in points] + ([line] if line is not None else [])) or 1
    span = (widest - narrowest) or 1

    def at(x: float, y: float) -> str:
        across = _MARGIN_LEFT + (x - narrowest) / span * (_WIDTH - _MARGIN_LEFT - 5)
        return f"{across:.1f},{8 + (1 - y / highest) * (_HEIGHT - _MARGIN_BELOW - 8):.1f}"

    lines = []
    for place, (name, curve) in enumerate(series.items()):
        dashes = "" if place == 0 else ' stroke-dasharray="5 3"'
        lines.append(
            f'<polyline fill="none" stroke="currentColor"{dashes} points="'
            + " ".join(at(x, y) for x, y in thinned(curve))
            + f'"><title>{html.escape(name)}</title></polyline>'
        )
    if line is not None:
        start, end = at(narrowest, line), at(widest, line)
        lines.append(
            f'<polyline fill="none" stroke="#c33" points="{start} {end}">'
            "<title>budget</title></polyline>"
        )
    return (
        f'<svg role="img" aria-label="{html.escape(label)}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="11" '
        f'fill="currentColor"><text x="0" y="14">{size(highest)}</text>'
        f'<text x="0" y="{_HEIGHT - _MARGIN_BELOW}">0</text>'
        f'<text x="{_MARGIN_LEFT}" y="{_HEIGHT - 5}">{html.escape(label)}</text>'
        f"{''.join(lines)}</svg>"
    )


def thinned(points: Points, most: int = 400) -> Points:
    """Returns the highest point of each of `most` runs of points, so that no peak is lost."""
    if len(points) <= most:
        return points
    each = len(points) / most
    starts = [int(k * each) for k in range(most)] + [len(points)]
    return [max(points[a:b], key=lambda point: point[1]) for a, b in zip(starts, starts[1:])]


Chart = Callable[[str, Mapping[str, Points], float | None], str]

# Draws the charts in place of those of the report, where these cannot be shown (charts.py).
chart: Chart = own_chart


def set_chart(draw: Chart | None) -> None:
    """Sets a function that draws the charts of notebooks; None sets acplan's own.

    `draw` takes the label of the axis, series of points (x, bytes) by name, and the bytes of a
    horizontal line, or None. It returns HTML.
    """
    global chart
    chart = draw or own_chart
