"""The charts of `acplan report` in a notebook.

A figure is some sections of the program's page, in a frame of its own. The page holds its data
and the library that draws it, so it makes no request to the network, and it is the page that
`acplan report` writes: there is one set of charts. The page is compressed in the frame's
`srcdoc`, a quarter of a megabyte, which the classic notebook, JupyterLab and VS Code show
alike. A MIME type such as application/vnd.vega.v5+json would be smaller, but shows nothing if a
front end has no renderer for it, as the classic notebook has none; it would also lack the
readings at the pointer. Before its script runs, and if no script may run, the frame shows the
plain chart of _files/display.py.
"""

import base64
import gzip
import html
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from acplan._base.errors import AcplanError
from acplan._base.question import question_folder
from acplan._files import display
from acplan._files.json_files import write_json

# The most bytes of the HTML of one figure.
MOST = 1 << 20


class Saved(Protocol):
    """A value that can be saved: a trace, a profile or a plan."""

    def save(self, path: str) -> None: ...


Source = Saved | str | os.PathLike[str]

_SCRIPT = """
(async () => {
  const packed = Uint8Array.from(atob("%s"), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const page = await new Response(unpacked).text();
  document.open();
  document.write(page);
  document.close();
})();
"""

_T = TypeVar("_T")

# The sources of values, indexed by the values' ids: a plan does not keep its trace alive, and
# is pickled without it.
_MADE_OF: dict[int, tuple[Callable[[], Any], ...]] = {}


def remember(value: _T, *sources: Any) -> _T:
    """Returns the value, and remembers its sources as long as others hold them."""
    key = id(value)
    _MADE_OF[key] = tuple(map(_weakly, sources))
    weakref.finalize(value, _MADE_OF.pop, key, None).atexit = False
    return value


def _weakly(source: Any) -> Callable[[], Any]:
    if isinstance(source, (str, os.PathLike)):
        return lambda: source
    return weakref.ref(source)


def made_of(value: Any) -> tuple[Any, ...] | None:
    """Returns the sources that were remembered for `value`, or None if one is no longer
    known."""
    sources = tuple(source() for source in _MADE_OF.get(id(value), ()))
    return sources if sources and None not in sources else None


def figure(
    parts: Sequence[str],
    source: Source | None,
    plain: str = "",
    *,
    plan: Saved | None = None,
    frontier: dict[str, Any] | None = None,
) -> str:
    """Returns these sections of the report of a trace or a profile, with a plan or a frontier.

    If the report cannot be made or is larger than MOST, it returns `plain` and one line with
    the reason; if there is no source, or acplan.set_chart has replaced the charts, it returns
    `plain` alone.
    """
    if source is None or display.chart is not display.own_chart:
        return plain
    try:
        frame = _framed(_page(parts, source, plan, frontier), plain)
    except AcplanError as error:
        return plain + _note(f"the charts of acplan report are not shown: {error}")
    if len(frame) > MOST:
        return plain + _note(
            f"the charts of acplan report are not shown, as they have {len(frame):,} bytes: "
            "acplan.report writes them into a file"
        )
    return frame


def _page(
    parts: Sequence[str],
    source: Source,
    plan: Saved | None,
    frontier: dict[str, Any] | None,
) -> bytes:
    with question_folder() as folder:
        question: dict[str, Any] = {
            "profile": folder.add("step", source),
            "plan": [] if plan is None else [folder.add("plan", plan)],
            "parts": ",".join(parts),
            "output": "page.html",
        }
        if frontier is None:
            question["points"] = 0
        else:
            question["frontier"] = "frontier"
            write_json(folder.path_of("frontier"), frontier)
        folder.ask("report", question).require_success()
        return folder.path_of("page.html").read_bytes()


def _framed(page: bytes, plain: str) -> str:
    packed = base64.b64encode(gzip.compress(page, mtime=0)).decode()
    content = f"{plain}<script>{_SCRIPT % packed}</script>"
    return (
        '<iframe title="Charts of acplan report" style="width: 100%; height: 560px; '
        f'border: 0" srcdoc="{html.escape(content)}"></iframe>'
    )


def _note(text: str) -> str:
    return f"<div><small>{html.escape(text)}</small></div>"
