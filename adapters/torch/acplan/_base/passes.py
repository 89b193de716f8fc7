"""The backward pass that runs now."""

from collections.abc import Callable

import torch

# Returns whether the pass keeps its graph, and with it the saved tensors. Older versions of
# PyTorch do not say.
is_graph_kept: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: False
)


def current_pass() -> int:
    """Returns the number of the pass of autograd that runs, or -1 if none does."""
    return torch._C._current_graph_task_id()
