"""Checkpoints that people use on many GPUs, beside plans at the same peak.

    PYTHONPATH=.:tests python tests/compare_parallel_modes.py [MODE...]

writes docs/measured/parallel_modes.csv, or with names of modes prints their rows. A rank of Llama-3-8B, with half of its layers, under
fully_shard and tensor parallelism runs on fake tensors with PyTorch's own checkpoint_wrapper around its layers, in the
modes that torchtitan has. The peak of each is the budget of a plan, with which the rank is traced
again. Communication that runs again waits for nothing else, so all of it is exposed.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._functorch.partitioners import get_default_op_list
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import acplan
from acplan._device.devices import find_device
from acplan._files.verification import VerifiedOperator
from acplan._step.parallel import Shard
from acplan._step.recorder import Recorder
from acplan._step.run_step import run_step, timeline_of
from acplan._step.step import alone, step_on_fakes
from acplan._step.training_step import training_step
from parallel_llama import LLAMA_8B, llama_on_meta, loss_of_llama, shard_llama, split_llama
from tables import Table, print_versions

_DEVICE = "h100"
_MESH = {"dp": 8, "tp": 4}
_OF_TORCHTITAN = ("_scaled_dot_product_cudnn_attention", "max", "linear", "topk")
_COMMUNICATION = ("reduce_scatter_tensor", "all_to_all_single")
_GIB = 1 << 30

Mode = Callable[[nn.Module, int], nn.Module]


def full(layer: nn.Module, number: int) -> nn.Module:
    wrapped: nn.Module = checkpoint_wrapper(layer, early_stop=False)
    return wrapped


def every_second(layer: nn.Module, number: int) -> nn.Module:
    return layer if number % 2 else full(layer, number)


def by_operator(layer: nn.Module, number: int) -> nn.Module:
    """Saves what torchtitan's SelectiveAC saves: products, but for every second aten.mm,
    attention, and results of reduce-scatters and all-to-alls."""
    saved = {op.default for op in get_default_op_list().compute_intensive_ops}
    saved |= {getattr(torch.ops.aten, name).default for name in _OF_TORCHTITAN}
    saved |= {getattr(torch.ops._c10d_functional, name).default for name in _COMMUNICATION}
    product = torch.ops.aten.mm.default

    def contexts() -> Any:
        counts = {True: 0, False: 0}

        def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            counts[context.is_recompute] += func is product
            is_left_out = func is product and counts[context.is_recompute] % 2 == 0
            is_saved = func in saved and not is_left_out
            return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    wrapped: nn.Module = checkpoint_wrapper(layer, context_fn=contexts, early_stop=False)
    return wrapped


MODES: dict[str, Mode] = {
    "full": full,
    "selective, op": by_operator,
    "selective, 2": every_second,
}


@dataclasses.dataclass(frozen=True)
class Ran:
    """The peak of a step, and the run-times of all operators and of its collectives."""

    peak_bytes: int
    all_ms: float
    communication_ms: float

    @classmethod
    def from_operators(cls, operators: tuple[VerifiedOperator, ...]) -> "Ran":
        return cls(
            max(operator.live_bytes for operator in operators),
            sum(operator.runtime_ms for operator in operators),
            sum(o.runtime_ms for o in operators if o.name.startswith("_c10d_functional")),
        )

    def excess_over(self, plain: "Ran") -> tuple[str, str, str]:
        return (
            f"{self.peak_bytes / _GIB:.2f}",
            f"{self.all_ms - plain.all_ms:.2f}",
            f"{self.communication_ms - plain.communication_ms:.2f}",
        )


def _tokens() -> torch.Tensor:
    return torch.zeros(2, 8192, dtype=torch.long, device="meta")


_MAKE = functools.partial(llama_on_meta, LLAMA_8B | {"num_hidden_layers": 16})


def _options(*functions: Shard) -> dict[str, Any]:
    parallelize = [split_llama, *functions, shard_llama]
    return {"mesh": _MESH, "parallelize": parallelize, "forward_fn": loss_of_llama}


def without_plan(trace: acplan.Trace) -> Ran:
    """Returns the step as it was traced."""
    operators = zip(trace.data["operators"], trace.live_bytes, strict=True)
    return Ran.from_operators(
        tuple(VerifiedOperator(o["name"], live, o["runtime_ms"]) for o, live in operators)
    )


def in_mode(mode: Mode) -> Ran:
    """Runs the rank with PyTorch's checkpoints."""

    def wrap(model: nn.Module, mesh: DeviceMesh) -> None:
        layers = model.get_submodule("model.layers")
        for number, layer in enumerate(layers.children()):
            layers.register_module(str(number), mode(layer, number))

    device = find_device(_DEVICE)
    training = training_step(_MAKE, (_tokens(),), _options(wrap))
    with alone(), step_on_fakes(training, device) as (step, optimizer):
        recorder = Recorder(device, kernels=device)
        run_step(recorder, step, optimizer)
    log = recorder.log
    lives = timeline_of(log)
    operators = (
        VerifiedOperator(operator.name, live, operator.runtime_ms)
        for operator, live in zip(log.operators, lives, strict=True)
    )
    return Ran.from_operators(tuple(operators))


def rows(names: list[str]) -> Iterator[tuple[object, ...]]:
    options = _options()
    trace = acplan.trace(_MAKE, _tokens(), device=_DEVICE, progress=False, **options)
    plain = without_plan(trace)
    yield "none", *plain.excess_over(plain)
    for name, mode in MODES.items():
        if names and name not in names:
            continue
        theirs = in_mode(mode)
        plan = acplan.plan(trace, theirs.peak_bytes, without_host=True)
        verification = acplan.verify(_MAKE, plan, _tokens(), trace=trace, **options)
        ours = Ran.from_operators(verification.measured)
        difference = verification.first_difference()
        yield (
            name, *theirs.excess_over(plain), *ours.excess_over(plain), plan.status,
            "" if difference is None else str(difference),
        )  # fmt: skip


COLUMNS = [
    "mode", "peak_gib", "recomputed_ms", "communication_ms", "plan_peak_gib",
    "plan_recomputed_ms", "plan_communication_ms", "plan_status", "difference",
]  # fmt: skip


def main(names: list[str]) -> None:
    print_versions("transformers")
    table = Table("parallel_modes", COLUMNS, is_partial=bool(names))
    with loss_parallel():
        for row in rows(names):
            table.add(*row)


if __name__ == "__main__":
    main(sys.argv[1:])
