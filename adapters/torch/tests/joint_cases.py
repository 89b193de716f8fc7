"""Joint graphs of models on fake CUDA tensors, as Inductor hands them to a partitioner."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._inductor.lowering
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.utils._pytree import tree_map

from acplan._device.fake_cuda import fake_cuda

Graphs = tuple[GraphModule, GraphModule]


@dataclasses.dataclass(frozen=True)
class Joint:
    """The arguments that a partitioner is called with."""

    module: GraphModule
    inputs: Any
    options: dict[str, Any]


class _Captured(Exception):
    pass


class _Loss(nn.Module):
    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self._names = names

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
        out = self.model(**dict(zip(self._names, inputs)))
        return (out.loss if hasattr(out, "loss") else out.square().mean(),)


@contextlib.contextmanager
def joint_of(
    make: Callable[[], nn.Module],
    inputs: Callable[[], dict[str, Any]],
    *,
    is_inductors: bool = True,
) -> Iterator[Joint]:
    """Yields the joint graph of the model and its loss, on an A100 that is not there. With
    `is_inductors` it is the graph after Inductor's decompositions and passes."""
    with torch.device("meta"):
        model, arguments = make(), inputs()
    with fake_cuda(), _as_compiling(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = _on_cuda(model.train())
        arguments = tree_map(_fake, {k: v for k, v in arguments.items() if v is not None})
        joints: list[Joint] = []

        def capture(module: GraphModule, joint_inputs: Any, **options: Any) -> Graphs:
            if is_inductors:
                from torch._inductor import config
                from torch._inductor.fx_passes.joint_graph import joint_graph_passes
                from torch._inductor.virtualized import V

                # Constants are folded, and padding is timed, on the device itself.
                alone = config.patch(joint_graph_constant_folding=False, shape_padding=False)
                with V.set_fake_mode(mode), alone:
                    module = joint_graph_passes(module)
            joints.append(Joint(module, joint_inputs, options))
            raise _Captured

        table = None
        if is_inductors:
            from torch._inductor.decomposition import select_decomp_table

            table = select_decomp_table()
        with contextlib.suppress(_Captured):
            aot_module_simplified(
                _Loss(model, [*arguments]),
                tuple(arguments.values()),
                fw_compiler=lambda module, _: module,
                partition_fn=capture,
                decompositions=table,
                keep_inference_input_mutations=True,
            )
        yield joints[0]


@contextlib.contextmanager
def _as_compiling() -> Iterator[None]:
    """Gives the device's random numbers a state, and keeps transformers from asking for
    values."""
    name = "transformers.utils.import_utils.is_torchdynamo_compiling"
    with (
        mock.patch.object(torch.cuda, "get_rng_state", lambda *_: torch.zeros(16)),
        mock.patch.object(torch.cuda, "set_rng_state", lambda *_: None),
        mock.patch(name, lambda: True),
    ):
        yield


def _fake(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="cuda")


def _on_cuda(model: nn.Module) -> nn.Module:
    fakes: dict[int, Any] = {}

    def fake_of(value: torch.Tensor) -> torch.Tensor:
        if id(value) not in fakes:
            fakes[id(value)] = _fake(value)
            if isinstance(value, nn.Parameter):
                fakes[id(value)] = nn.Parameter(fakes[id(value)], value.requires_grad)
        return fakes[id(value)]

    for module in model.modules():
        for store in (module._parameters, module._buffers):
            store.update({k: fake_of(v) for k, v in store.items() if v is not None})
    return model
