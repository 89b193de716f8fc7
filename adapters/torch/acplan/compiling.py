"""acplan as the partitioner of torch.compile: what the compiled forward saves is the plan's
choice, and what backward needs besides is computed again inside its kernels."""

import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch._functorch.config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from acplan._version import __version__
from acplan.backward_order import BackwardOrder
from acplan.compiled_memory import GraphBytes, StepMemory, size_bytes
from acplan.devices import DEVICES, Device, find_device
from acplan.errors import AcplanError
from acplan.graph_peaks import run_step
from acplan.joint_graphs import JointGraph
from acplan.measuring import Step, Verification
from acplan.optimizers import OptimizerLike
from acplan.partitioning import choosing
from acplan.planning import Budget, size_text
from acplan.remat import plan_graph
from acplan.timing import measured_device

try:
    from torch._inductor import custom_graph_pass

    # From PyTorch 2.9 on.
    _Base: Any = custom_graph_pass.CustomPartitionerFn
except (ImportError, AttributeError):
    _Base = object
# From 2.8 on. What counts beside a graph cannot be told without.
_TELLS_STATIC_INPUTS = "static_lifetime_input_indices" in (
    inspect.signature(min_cut_rematerialization_partition).parameters
)

_LOGGER = logging.getLogger("acplan")
_OPTION = "custom_partitioner_fn"

Graphs = tuple[GraphModule, GraphModule]


@dataclasses.dataclass(frozen=True)
class CompiledPlan:
    """The plan of one graph: data of the files `acplan.remat` and `acplan.graph`, and the
    two graphs that PyTorch made by it."""

    name: str
    data: dict[str, Any]
    graph: dict[str, Any]
    forward: GraphModule
    backward: GraphModule
    num_fwd_outputs: int

    @property
    def status(self) -> str:
        return str(self.data["status"])

    @property
    def peak_bytes(self) -> int:
        """Predicted, of the graphs as they are, node by node."""
        return int(self.data["peak_bytes"])

    @property
    def recompute_ms(self) -> float:
        return float(self.data["recompute_ms"])

    @property
    def bound_ms(self) -> float:
        """No choice within the budget recomputes less."""
        return float(self.data["bound_ms"])

    @property
    def saved(self) -> tuple[str, ...]:
        """The names of the nodes that forward saves."""
        return tuple(self.data["saved"])

    def verify(self) -> Verification:
        """The memory that was predicted beside that of the two graphs, run node by node on
        fake tensors."""
        listed = {node["name"] for node in self.graph["nodes"]}
        forward, backward = run_step(
            self.forward, self.backward, self.num_fwd_outputs, self.graph["held_bytes"]
        )
        return Verification(
            tuple(Step(s["node"], s["bytes"]) for s in self.data["memory"]),
            tuple(step for step in (*forward, *backward) if step.name in listed),
        )

    def __repr__(self) -> str:
        return (
            f"<CompiledPlan {self.name}: {self.status}, peak {self.peak_bytes:,} bytes, "
            f"{self.recompute_ms:.3f} ms again>"
        )


@dataclasses.dataclass(frozen=True)
class _Found:
    data: dict[str, Any]
    graph: dict[str, Any]
    saved: list[Node]
    order: BackwardOrder


class Partitioner(_Base):  # type: ignore[misc]
    """What acplan.partitioner makes. `plans` has those of the graphs that were partitioned
    in this process; of graphs that came from PyTorch's cache there is none."""

    def __init__(
        self,
        budget: Budget,
        device: Device,
        memory: StepMemory,
        *,
        strict: bool,
        is_fused: bool,
        time_limit: float | None,
    ) -> None:
        self.plans: list[CompiledPlan] = []
        self._budget = size_text("budget", budget)
        self._device = device
        self._memory = memory
        self._strict = strict
        self._is_fused = is_fused
        self._time_limit = time_limit
        self._told: set[str] = set()

    def uuid(self) -> str:
        """What PyTorch's caches tell plans apart by."""
        return repr(
            (
                "acplan", __version__, self._budget, self._device.name,
                self._memory.key(),
                self._strict, self._is_fused, self._time_limit,
            )
        )  # fmt: skip

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # Inductor's cache keys are made of its pickled options.
        return str, (self.uuid(),)

    def __call__(
        self,
        gm: GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **kwargs: Any,
    ) -> Graphs:
        found: list[_Found] = []

        def choose(joint_graph: Graph, node_info: Any) -> list[Node] | None:
            try:
                found.append(self._planned(gm, node_info, num_fwd_outputs))
            except Exception as error:
                self._fall_back(error)
                return None
            return found[-1].saved

        partition = functools.partial(
            min_cut_rematerialization_partition,
            gm,
            joint_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices,
            **kwargs,
        )
        try:
            with choosing(choose):
                forward, backward = partition()
            if not found:
                return forward, backward
            backward = found[-1].order.applied(backward)
        except Exception as error:
            if not found or self._strict:
                raise
            self._fall_back(error)
            return partition()
        self._remember(found[-1], (forward, backward), num_fwd_outputs)
        return forward, backward

    def _planned(
        self, module: GraphModule, node_info: Any, num_fwd_outputs: int
    ) -> _Found:
        with _disable_current_modes():
            joint = JointGraph(
                module, node_info, num_fwd_outputs, self._device, is_fused=self._is_fused
            )
            inputs = joint.input_bytes(node_info.static_lifetime_input_nodes)
            sizes = GraphBytes(inputs, joint.input_bytes() - inputs)
            frame = _frame_name()
            graph = joint.data(_name_of(module), self._memory.beside(frame, sizes))
            data = self._within_budget(graph)
            saved = joint.saved_nodes(data["saved"])
            self._memory.plan_is(
                frame,
                dataclasses.replace(
                    sizes, saved=int(data["saved_bytes"]), outputs=joint.returned_bytes()
                ),
            )
            return _Found(data, graph, saved, joint.order)

    def _within_budget(self, graph: dict[str, Any]) -> dict[str, Any]:
        data = plan_graph(graph, self._budget, self._time_limit)
        if data["status"] not in ("infeasible", "no_solution"):
            return data
        if "least_bytes" not in data:
            raise AcplanError("no plan keeps the rules of the compiled graph")
        least = int(data["least_bytes"])
        which = "fits" if data["status"] == "infeasible" else "was found that fits"
        told = (
            f"budget: no plan of the compiled graph {which} {data['budget_bytes']:,} bytes; "
            f"one needs {least:,}"
        )
        if self._strict:
            raise AcplanError(told, exit_code=3)
        self._warn(f"{told}, which is planned for")
        return plan_graph(graph, least, self._time_limit)

    def _fall_back(self, error: Exception) -> None:
        if self._strict:
            raise error
        reason = str(error).partition("\n")[0] or type(error).__name__
        self._warn(f"a graph is partitioned as PyTorch does: {reason}")

    def _warn(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            warnings.warn(message, stacklevel=2)

    def _remember(self, found: _Found, graphs: Graphs, num_fwd_outputs: int) -> None:
        # Inductor changes the graphs that it gets.
        forward, backward = (_copy(module) for module in graphs)
        plan = CompiledPlan(
            found.graph["model"]["name"], found.data, found.graph,
            forward, backward, num_fwd_outputs,
        )  # fmt: skip
        self.plans.append(plan)
        _LOGGER.info("%r", plan)


def _copy(module: GraphModule) -> GraphModule:
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)


def _frame_name() -> str:
    """Of the code that is compiled, for whatever shapes."""
    try:
        from torch._guards import CompileContext

        compile_id = CompileContext.current_compile_id()
    except (ImportError, AttributeError):
        compile_id = None
    frame = getattr(compile_id, "frame_id", None)
    return "" if frame is None else str(frame)


def _name_of(module: GraphModule) -> str:
    try:
        from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name

        return str(get_aot_graph_name())
    except (ImportError, AttributeError, AssertionError):
        return type(module).__name__


def _device_of(device: str | Device | None) -> Device:
    if device == "cuda":
        return measured_device()
    if device is not None:
        return find_device(device)
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        known = (d for d in DEVICES.values() if d.product == name)
        return next(known, DEVICES["a100"])
    return DEVICES["a100"]


def partitioner(
    budget: Budget,
    *,
    model: torch.nn.Module | None = None,
    optimizer: OptimizerLike = None,
    held: int | str = 0,
    strict: bool = False,
    device: str | Device | None = None,
    fused: bool = True,
    time_limit: float | None = None,
) -> Partitioner:
    """What torch.compile takes as options={"custom_partitioner_fn": ...} (PyTorch 2.9 and
    newer), and aot_autograd and aot_module_simplified as partition_fn (2.8): of each graph,
    it saves what makes backward compute least again while the step stays within the budget.

    budget:     bytes, "20GiB", a share such as "60%" of what the step needs if everything
                is saved, or "min".
    model:      whose parameters and buffers count besides what the graph has of them.
    optimizer:  what it keeps counts, too: an instance, a name of OPTIMIZERS, a class.
    held:       bytes or a size that the step needs besides.
    strict:     raises AcplanError where nothing fits, which tells the least budget, or
                where acplan fails. Else that budget is planned for, or PyTorch
                partitions, with one warning.
    device:     whose run-times count: a name of DEVICES, "cuda" to measure operators on
                the one that is there; by default the one that is there, if known, else
                an A100.
    fused:      run-times of Inductor's kernels; False: of each operator by itself.
    time_limit: seconds to search.
    """
    if not _TELLS_STATIC_INPUTS:
        raise AcplanError(
            f"partitioner: PyTorch {torch.__version__} tells no partitioner which inputs "
            "are parameters; expected 2.8 or newer"
        )
    beside = size_bytes("held", held)
    if optimizer is not None and model is None:
        raise AcplanError(
            "optimizer: its memory is that of a model's parameters; give model"
        )
    return Partitioner(
        budget,
        _device_of(device),
        StepMemory(model, optimizer, beside),
        strict=strict,
        is_fused=fused,
        time_limit=time_limit,
    )


def compile(
    model: torch.nn.Module,
    budget: Budget,
    *,
    optimizer: OptimizerLike = None,
    held: int | str = 0,
    strict: bool = False,
    device: str | Device | None = None,
    time_limit: float | None = None,
    backend: str = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """torch.compile(model, ...), whose training step stays within the budget: see
    acplan.partitioner. backend is "inductor" or "aot_eager"; mode, options, dynamic and
    fullgraph are torch.compile's.

    acplan.compiled_plans(compiled) has the plans of the graphs that were compiled.
    """
    if not isinstance(model, torch.nn.Module):
        raise AcplanError(f"compile: expected a module, found {type(model).__name__}")
    made = partitioner(
        budget,
        model=model,
        optimizer=optimizer,
        held=held,
        strict=strict,
        device=device,
        fused=backend != "aot_eager",
        time_limit=time_limit,
    )
    compiled = torch.compile(model, **_arguments(made, backend, mode, options), **kwargs)
    object.__setattr__(compiled, _ATTRIBUTE, made)
    return compiled


_ATTRIBUTE = "_acplan_partitioner"


def compiled_plans(compiled: Any) -> tuple[CompiledPlan, ...]:
    """The plans of the graphs of what acplan.compile returned, as far as it has run."""
    made = vars(compiled).get(_ATTRIBUTE) if hasattr(compiled, "__dict__") else None
    if made is None:
        raise AcplanError("compiled_plans: expected what acplan.compile returns")
    return tuple(made.plans)


def verify_compiled(compiled: Any) -> tuple[Verification, ...]:
    """Of each graph that was compiled, the memory predicted beside that of the graphs run
    node by node on fake tensors."""
    plans = (
        compiled.plans if isinstance(compiled, Partitioner) else compiled_plans(compiled)
    )
    return tuple(plan.verify() for plan in plans)


def _arguments(
    made: Partitioner, backend: str, mode: str | None, options: dict[str, Any] | None
) -> dict[str, Any]:
    """torch.compile's."""
    if backend == "aot_eager":
        if mode is not None or options:
            raise AcplanError("compile: mode and options are those of backend 'inductor'")
        return {"backend": _aot_eager(made)}
    if backend != "inductor":
        raise AcplanError(
            f"compile: expected backend 'inductor' or 'aot_eager', found {backend!r}; "
            "acplan.partitioner is a partition_fn for others that use aot_autograd"
        )
    options = dict(options or {})
    if any(name.replace("-", "_") == _OPTION for name in options):
        raise AcplanError(f"compile: options have a {_OPTION}, which acplan is to be")
    if mode is not None:
        if options:
            raise AcplanError("compile: give mode or options, as to torch.compile")
        options = dict(_options_of(mode))
    if _Base is object:
        return {"backend": _inductor(made, options)}
    return {"backend": "inductor", "options": options | {_OPTION: made}}


def _inductor(made: Partitioner, options: dict[str, Any]) -> Callable[..., Any]:
    """Inductor of PyTorch 2.8, which has no option for a partitioner. It compiles one graph
    at a time; its cache of whole graphs would not tell plans apart."""
    compiled = torch._TorchCompileInductorWrapper(None, options, None)

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Any:
        from torch._inductor import compile_fx

        uncached = torch._functorch.config.patch(enable_autograd_cache=False)
        name = min_cut_rematerialization_partition.__name__
        with uncached, mock.patch.object(compile_fx, name, made):
            return compiled(module, inputs)

    return backend


def _options_of(mode: str) -> dict[str, Any]:
    known = torch._inductor.list_mode_options()
    if mode not in known:
        raise AcplanError(f"mode: expected one of {', '.join(known)}, found {mode!r}")
    return dict(known[mode])


def _aot_eager(made: Partitioner) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    return aot_autograd(
        fw_compiler=boxed_nop, partition_fn=made, keep_inference_input_mutations=True
    )
