"""Shares the budget of a step over all graphs that it runs: they are found by a step on fake
tensors, planned as one, and each gets its share when PyTorch partitions it."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch._functorch.config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from acplan._base.errors import AcplanError
from acplan._base.patching import set_attribute
from acplan._compile.dynamo_state import compiles_apart
from acplan._compile.fake_step import RecordedStep, record_step
from acplan._compile.joint_step import JointStep
from acplan._compile.step_memory import run_graphs
from acplan._compile.step_recorder import Graphs, MakeJoint, StepRecorder
from acplan._files.verification import Verification, VerifiedOperator
from acplan._graphs.pytorch_partitioner import Chooser, choosing
from acplan._step.step import alone

try:
    from torch._inductor import custom_graph_pass

    # From PyTorch 2.9 on.
    PartitionerBase: Any = custom_graph_pass.CustomPartitionerFn
except (ImportError, AttributeError):
    PartitionerBase = object


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """The plan of all graphs of a step: data of the files `acplan.remat` and `acplan.graph`,
    and the graphs that PyTorch has made from it so far, by their keys."""

    data: dict[str, Any]
    graph: dict[str, Any]
    shares: dict[str, list[str]]
    modules: dict[str, Graphs] = dataclasses.field(default_factory=dict)
    step: RecordedStep | None = None

    @property
    def name(self) -> str:
        return str(self.graph["model"]["name"])

    @property
    def status(self) -> str:
        return str(self.data["status"])

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of the graphs as they are, node by node, one after another."""
        return int(self.data["peak_bytes"])

    @property
    def recompute_ms(self) -> float:
        return float(self.data["recompute_ms"])

    @property
    def bound_ms(self) -> float:
        """A number that the recomputation of no choice within the budget is below."""
        return float(self.data["bound_ms"])

    @property
    def saved(self) -> tuple[str, ...]:
        """The nodes that are kept for backward, each as the run of a graph and the node's
        name."""
        return tuple(self.data["saved"])

    @property
    def runs(self) -> tuple[str, ...]:
        """The graphs in the order in which forward runs them, by their keys."""
        return tuple(run.graph.key for run in self.step.forward) if self.step else ()

    @property
    def key(self) -> str:
        """A hash of the decisions."""
        text = json.dumps(self.shares, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def verify(self) -> Verification:
        """Returns the predicted memory beside that of the graphs, run one after another, node
        by node, on fake tensors. Graphs that are not compiled yet, or came from PyTorch's
        cache, are made for this."""
        assert self.step is not None
        graphs = {run.graph.key: run.graph for run in self.step.forward}
        modules = {
            key: self.modules.get(key) or graphs[key].saving(share)
            for key, share in self.shares.items()
        }
        nodes = {n["name"] for n in self.graph["nodes"] if n["op"]}
        measured = run_graphs(self.step, modules, self.graph["held_bytes"])
        predicted = [s for s in self.data["memory"] if s["node"] in nodes]
        return Verification(
            tuple(VerifiedOperator(s["node"], s["bytes"]) for s in predicted), tuple(measured)
        )

    def __repr__(self) -> str:
        return (
            f"<StepPlan {self.name}: {len(self.runs)} runs of {len(self.shares)} graphs, "
            f"{self.status}, peak {self.peak_bytes:,} bytes, "
            f"{self.recompute_ms:.3f} ms again>"
        )


class RecordingPartitioner(PartitionerBase):  # type: ignore[misc]
    """The partitioner of the step on fake tensors."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder

    def uuid(self) -> None:
        return None  # nothing of it is cached

    def __call__(
        self,
        gm: GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        **kwargs: Any,
    ) -> Graphs:
        def partition_with(choose: Chooser) -> Graphs:
            with choosing(choose):
                return min_cut_rematerialization_partition(
                    gm, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs
                )

        return self._recorder.partition(partition_with, gm, num_fwd_outputs)


PARTITIONER_OPTION = "custom_partitioner_fn"
_PARTITION = min_cut_rematerialization_partition.__name__
_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel"}


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A model and how it is compiled: as a whole, or these parts of it. `backend`, `options`
    and `kwargs` are those of torch.compile; options have no partitioner yet."""

    model: torch.nn.Module
    blocks: tuple[torch.nn.Module, ...] = ()
    backend: str = "inductor"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_shared(self) -> bool:
        """True if other ranks take part in a step, so that it cannot run alone."""
        kinds = {type(module).__name__ for module in self.model.modules()}
        tensors = [*self.model.parameters(), *self.model.buffers()]
        is_sharded = any(hasattr(tensor, "_local_tensor") for tensor in tensors)
        return is_sharded or bool(kinds & _WRAPPERS)

    def apply(self, arguments: dict[str, Any]) -> torch.nn.Module:
        """Returns the compiled model, with these arguments of torch.compile besides."""
        for block in self.blocks:
            block.compile(**arguments, **self.kwargs)
        if self.blocks:
            return self.model
        compiler: Any = torch.compile
        compiled: torch.nn.Module = compiler(self.model, **arguments, **self.kwargs)
        return compiled

    def record(
        self, make_joint: MakeJoint, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RecordedStep:
        """Returns the graphs of a step that is called with these arguments."""
        recorder = StepRecorder(make_joint)
        arguments: dict[str, Any] = {"backend": self._backend(recorder), **self.kwargs}
        if compiles_apart():
            arguments["isolate_recompiles"] = True
        # Compiled code is marked: blocks need only the context that compiles them.
        whole = torch.nn.Identity() if self.blocks else self.model
        call: Any = torch.compile(whole, **arguments)
        region = getattr(call.dynamo_ctx, "_isolate_recompiles_id", None)
        user_inputs = (args, kwargs)
        if not self.blocks:
            return record_step(recorder, self.model, call, user_inputs, region)
        with alone(), contextlib.ExitStack() as undo:
            for block in self.blocks:
                # In one context, the code that is compiled for one block is used for equal
                # ones.
                compiled = call.dynamo_ctx(block._call_impl)
                undo.enter_context(set_attribute(block, "_compiled_call_impl", compiled))
            return record_step(recorder, self.model, self.model, user_inputs, region)

    def _backend(self, recorder: StepRecorder) -> Callable[..., Any]:
        partitioner = RecordingPartitioner(recorder)
        if self.backend == "aot_eager":
            from torch._dynamo.backends.common import aot_autograd

            return aot_autograd(
                fw_compiler=recorder.compile,
                bw_compiler=recorder.compile,
                partition_fn=partitioner,
                keep_inference_input_mutations=True,
            )
        from torch._inductor.compile_fx import compile_fx

        patches = self.options | {"force_disable_caches": True}
        if inductor_takes_partitioners():
            patches[PARTITIONER_OPTION] = partitioner

        def backend(module: GraphModule, inputs: Sequence[Any]) -> Any:
            with partitioning_by(partitioner):
                compile_inside: Any = recorder.compile
                return compile_fx(
                    module, inputs, inner_compile=compile_inside, config_patches=patches
                )

        return backend


def inductor_takes_partitioners() -> bool:
    """Returns whether Inductor has an option for a partitioner, as from PyTorch 2.9 on."""
    return PartitionerBase is not object


@contextlib.contextmanager
def partitioning_by(partitioner: Callable[..., Any]) -> Iterator[None]:
    """Replaces the partitioner within the block in PyTorch 2.8, whose Inductor has no option
    for one, and compiles one graph at a time; its cache of whole graphs would not tell plans
    apart."""
    if inductor_takes_partitioners():
        yield
        return
    from torch._inductor import compile_fx

    uncached = torch._functorch.config.patch(enable_autograd_cache=False)
    with uncached, set_attribute(compile_fx, _PARTITION, partitioner):
        yield


def plan_of(step: RecordedStep, joint: JointStep, data: dict[str, Any]) -> StepPlan:
    return StepPlan(data, joint.data, joint.shares(step, data["saved"]), step=step)


def blocks_of(
    model: torch.nn.Module, blocks: Iterable[torch.nn.Module] | None
) -> tuple[torch.nn.Module, ...]:
    if blocks is None:
        return ()
    if not isinstance(blocks, Iterable):
        what = type(blocks).__name__
        raise AcplanError(f"blocks: expected modules of the model, found an {what}")
    modules = (*blocks,)
    if not modules:
        raise AcplanError("blocks: expected modules of the model, found none")
    own = {id(module) for module in model.modules()} - {id(model)}
    for block in modules:
        if id(block) not in own:
            what = type(block).__name__
            raise AcplanError(f"blocks: expected modules of the model, found a {what}")
    return modules


def options_of(
    backend: str, mode: str | None, options: dict[str, Any] | None
) -> dict[str, Any]:
    """Returns the options of torch.compile for Inductor."""
    if backend == "aot_eager":
        if mode is not None or options:
            raise AcplanError("compile: mode and options are those of backend 'inductor'")
        return {}
    if backend != "inductor":
        raise AcplanError(
            f"compile: expected backend 'inductor' or 'aot_eager', found {backend!r}; "
            "acplan.partitioner is a partition_fn for others that use aot_autograd"
        )
    options = {k.replace("-", "_"): value for k, value in (options or {}).items()}
    if PARTITIONER_OPTION in options:
        raise AcplanError(f"compile: options have a {PARTITIONER_OPTION}, which acplan sets")
    if mode is not None:
        if options:
            raise AcplanError("compile: give mode or options, as to torch.compile")
        options = dict(_of_mode(mode))
    return options


def _of_mode(mode: str) -> dict[str, Any]:
    modes = torch._inductor.list_mode_options()
    if mode not in modes:
        raise AcplanError(f"mode: expected one of {', '.join(modes)}, found {mode!r}")
    return dict(modes[mode])
