"""The link to the host's memory that `offload` names."""

import difflib
import re
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.host_links import host_links
from acplan._program.budgets import require_rate

# The link of the trace's device, for the program.
OWN_LINK = "gpu"
_NAME = re.compile(r"\s*([a-zA-Z][^/]*)(?:/\d+)?")


def require_link(offload: Any) -> None:
    """Raises AcplanError if the program would not take a value as a link: a rate, one for each
    way, or the name of a link or a GPU."""
    match = _NAME.fullmatch(offload) if isinstance(offload, str) else None
    if match is None:
        ways = offload.split(",") if isinstance(offload, str) else [offload]
        for rate in ways if len(ways) == 2 else [offload]:
            require_rate("offload", rate)
        return
    links = host_links()
    names = [*links, *(gpu for link in links.values() for gpu in link.gpus)]
    name = match[1].lower()
    if name in names:
        return
    near = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AcplanError(
        f'offload: expected a rate such as "25GB/s", one of {", ".join(links)} or a GPU, '
        f"found {offload!r}{hint}"
    )
