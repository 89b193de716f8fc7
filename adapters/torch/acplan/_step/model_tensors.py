"""The parameters and buffers of a model in a trace: their types, and when the backward pass has
completed the gradients."""

from typing import Any

import torch

from acplan._step.step_log import StepLog


class ModelTensors:
    """Notes, from before the step on, what a trace has as `model_tensors`."""

    def __init__(self, log: StepLog, model: torch.nn.Module) -> None:
        self._log = log
        self._parameters = list(model.parameters())
        self._buffers = list(model.buffers())
        self._entries = [_entry(log, t) for t in (*self._parameters, *self._buffers)]
        self._ready: dict[int, int] = {}  # by parameter, in the order of the last times
        self._gradients: list[dict[str, int]] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._noting(place))
            for place, parameter in enumerate(self._parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]

    def _noting(self, place: int) -> Any:
        def on_gradient(_: torch.Tensor) -> None:
            self._ready.pop(place, None)
            self._ready[place] = self._log.now

        return on_gradient

    def end_backward(self, forward_end: int) -> None:
        """Ends the noting, when the gradients are there. One that was complete before the end
        of the forward passes, as in a pipeline, counts as ready then."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter, entry in zip(self._parameters, self._entries):
            if entry is not None and parameter.requires_grad:
                entry["trained"] = True
        for place, time in self._ready.items():
            storages = self._log.storages_of([self._parameters[place].grad])
            if len(storages) == 1:
                self._gradients.append(
                    {
                        "parameter": place,
                        "storage": storages[0],
                        "ready": max(time, forward_end),
                    }
                )

    def data(self) -> dict[str, Any]:
        """Returns the trace's entry, or an empty one if a tensor has no memory of its own."""
        if any(entry is None for entry in self._entries):
            return {}
        count = len(self._parameters)
        return {
            "model_tensors": {
                "parameters": self._entries[:count],
                "buffers": self._entries[count:],
                "gradients": self._gradients,
            }
        }


def _entry(log: StepLog, tensor: torch.Tensor) -> dict[str, Any] | None:
    parts = log.plain([tensor])  # of a sharded parameter, the rank's own
    if len(parts) != 1:
        return None
    return {
        "storage": log.storage_of(parts[0]),
        "bytes": parts[0].numel() * parts[0].element_size(),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
