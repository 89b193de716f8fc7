"""PyTorch's partitioner with another choice of saved values.

`min_cut_rematerialization_partition` prepares the joint graph, asks `choose_saved_values_set`
what forward is to save, and makes the two graphs from the answer. Only this question is
answered here: effects, random numbers, symbols and ranks remain PyTorch's business.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch._functorch import partitioners
from torch.fx import Graph, Node

Chooser = Callable[[Graph, Any], list[Node] | None]
"""What to save, by the graph and PyTorch's account of its nodes; None: as PyTorch does."""

_NAME = "choose_saved_values_set"


class _OfThread(threading.local):
    chooser: Chooser | None = None


class _Replacement:
    """A function that replaces PyTorch's while a thread is choosing, and calls PyTorch's in
    every other thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._of_thread = _OfThread()
        self._original: Callable[..., list[Node]] | None = None

    @contextlib.contextmanager
    def choosing(self, chooser: Chooser) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._original = getattr(partitioners, _NAME)
                setattr(partitioners, _NAME, self._choose)
            self._users += 1
        before, self._of_thread.chooser = self._of_thread.chooser, chooser
        try:
            yield
        finally:
            self._of_thread.chooser = before
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    setattr(partitioners, _NAME, self._original)

    def _choose(
        self, joint_graph: Graph, node_info: Any, *args: Any, **kwargs: Any
    ) -> list[Node]:
        chooser = self._of_thread.chooser
        nodes = chooser(joint_graph, node_info) if chooser else None
        if nodes is not None:
            return nodes
        assert self._original is not None
        return self._original(joint_graph, node_info, *args, **kwargs)


_REPLACEMENT = _Replacement()


def choosing(chooser: Chooser) -> contextlib.AbstractContextManager[None]:
    """Lets PyTorch's partitioner save, in this thread and within the block, the nodes that
    `chooser` returns."""
    return _REPLACEMENT.choosing(chooser)
