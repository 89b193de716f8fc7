"""acplan as the partitioner of torch.compile: the compiled forward saves what the plan chooses,
and other tensors that backward needs are computed again inside its kernels."""

import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.arguments import require_module, with_old_name
from acplan._base.errors import AcplanError, reason_of
from acplan._base.package import __version__
from acplan._compile.compiled_plan import CompiledPlan
from acplan._compile.fake_step import compiles_fakes
from acplan._compile.first_call import plan_at_first_call
from acplan._compile.held_memory import (
    GraphBytes,
    StepMemory,
    require_time_limit,
)
from acplan._compile.joint_step import joint_step, of_model
from acplan._compile.step_plan import (
    PARTITIONER_OPTION,
    Compilation,
    PartitionerBase,
    StepPlan,
    blocks_of,
    inductor_takes_partitioners,
    options_of,
    partitioning_by,
    plan_of,
)
from acplan._compile.step_recorder import Graphs, hash_of
from acplan._device.devices import DEVICES, Device, find_device, known_as
from acplan._device.operator_timing import measured_device
from acplan._files.verification import Verification
from acplan._graphs.backward_order import BackwardOrder
from acplan._graphs.joint_graph import JointGraph
from acplan._graphs.moved_values import move_values, moves_of
from acplan._graphs.pytorch_partitioner import choosing
from acplan._graphs.remat import Link, link_of, plan_graph
from acplan._program.budgets import Budget, require_budget, size_bytes, size_text
from acplan._step.optimizers import OptimizerLike, named_optimizer

# True from PyTorch 2.8 on. Without static inputs, the memory beside a graph is not known.
_TELLS_STATIC_INPUTS = "static_lifetime_input_indices" in (
    inspect.signature(min_cut_rematerialization_partition).parameters
)

_LOGGER = logging.getLogger("acplan")


@dataclasses.dataclass(frozen=True)
class _GraphPlan:
    data: dict[str, Any]
    graph: dict[str, Any]
    saved: list[Node]
    order: BackwardOrder
    key: str = ""  # the key of a graph of a step that is planned

    def finish(
        self, forward: GraphModule, backward: GraphModule, num_fwd_outputs: int
    ) -> GraphModule:
        """Puts the plan's copies into both graphs, and returns backward in the plan's order."""
        backward = self.order.applied(backward)
        listed = {node["name"] for node in self.graph.get("nodes", ())}
        with _disable_current_modes():
            move_values(forward, backward, num_fwd_outputs, moves_of(self.data), listed)
        return backward


class Partitioner(PartitionerBase):  # type: ignore[misc]
    """The partitioner that acplan.partitioner makes. `plans` has the plans of the graphs that
    were partitioned in this process; graphs that came from PyTorch's cache have none."""

    def __init__(
        self,
        budget: Budget,
        device: Device,
        memory: StepMemory,
        *,
        strict: bool,
        is_fused: bool,
        time_limit: float | None,
        link: Link | None = None,
    ) -> None:
        self._link = link
        self.plans: list[CompiledPlan] = []
        self.step_plan: StepPlan | None = None
        self._budget = size_text("budget", budget)
        self._device = device
        self._memory = memory
        self._strict = strict
        self._is_fused = is_fused
        self._time_limit = time_limit
        self._warnings_given: set[str] = set()

    def uuid(self) -> str:
        """Returns the text by which PyTorch's caches tell plans apart."""
        return repr(
            (
                "acplan", __version__, self._budget, self._device.name,
                self._memory.key(),
                self._strict, self._is_fused, self._time_limit, self._link,
                self.step_plan and self.step_plan.key,
            )
        )  # fmt: skip

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # Inductor's cache keys are made of its pickled options.
        return str, (self.uuid(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Partitioner":
        return self  # a copy of a compiled model is compiled by the same

    def __call__(
        self,
        gm: GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **kwargs: Any,
    ) -> Graphs:
        graph_plans: list[_GraphPlan] = []

        def choose(joint_graph: Graph, node_info: Any) -> list[Node] | None:
            try:
                graph_plans.append(self._plan_graph(gm, node_info, num_fwd_outputs))
            except Exception as error:
                self._fall_back(error)
                return None
            return graph_plans[-1].saved

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
            if not graph_plans:
                return forward, backward
            backward = graph_plans[-1].finish(forward, backward, num_fwd_outputs)
        except Exception as error:
            if not graph_plans or self._strict:
                raise
            self._fall_back(error)
            return partition()
        self._remember(graph_plans[-1], (forward, backward), num_fwd_outputs)
        return forward, backward

    def plan_step(
        self, compilation: Compilation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Plans all graphs of a step together: those that the model, compiled so, runs when it
        is called with these arguments. If that fails, they are planned one after another, with
        one warning; with `strict` that is an error."""
        try:
            if not compiles_fakes():
                raise AcplanError(
                    f"PyTorch {torch.__version__} cannot compile a step on fake tensors; "
                    "expected 2.11 or newer"
                )
            _refuse_meta(compilation.model)
            step = compilation.record(self._joint_graph, args, kwargs)
            if not step.forward:
                raise AcplanError("no graph with a backward pass is compiled")
            if len(step.forward) == 1:
                return
            if self._link is not None:
                raise AcplanError("offload: graphs that are planned together move nothing")
            name = type(compilation.model).__name__
            inputs = joint_step(step, name).inputs
            held_bytes = self._memory.beside_step(of_model(step, inputs)) + step.elsewhere_bytes
            joint = joint_step(step, name, held_bytes)
            data = self._within_budget(joint.data)
            self.step_plan = plan_of(step, joint, data)
        except Exception as error:
            if self._strict:
                raise
            reason = reason_of(error, "planning them together")
            self._warn(
                f"the graphs of the step are planned one after another, not together: {reason}"
            )
        else:
            _LOGGER.info("%r", self.step_plan)

    def _joint_graph(
        self, module: GraphModule, node_info: Any, num_fwd_outputs: int
    ) -> JointGraph:
        return JointGraph(
            module, node_info, num_fwd_outputs, self._device, is_fused=self._is_fused
        )

    def _plan_graph(
        self, module: GraphModule, node_info: Any, num_fwd_outputs: int
    ) -> _GraphPlan:
        with _disable_current_modes():
            joint = self._joint_graph(module, node_info, num_fwd_outputs)
            if self.step_plan is not None:
                key = hash_of(joint, joint.data(""))
                if key in self.step_plan.shares:
                    saved = joint.saved_nodes(self.step_plan.shares[key])
                    return _GraphPlan({}, {}, saved, joint.order, key)
                text = "a graph is not part of the planned step"
                if self._strict:
                    raise AcplanError(text)
                self._warn(f"{text}: it is planned on its own")
            inputs = joint.input_bytes(node_info.static_lifetime_input_nodes)
            sizes = GraphBytes(inputs, joint.input_bytes() - inputs)
            frame = _frame_name()
            graph = joint.data(_name_of(module), self._memory.bytes_beside(frame, sizes))
            data = self._within_budget(graph, self._link)
            saved = joint.saved_nodes(data["saved"])
            saved_bytes = int(data["saved_bytes"]) - int(data.get("moved_bytes", 0))
            self._memory.plan_is(
                frame,
                dataclasses.replace(sizes, saved=saved_bytes, outputs=joint.returned_bytes()),
            )
            return _GraphPlan(data, graph, saved, joint.order)

    def _within_budget(self, graph: dict[str, Any], link: Link | None = None) -> dict[str, Any]:
        data = plan_graph(graph, self._budget, self._time_limit, link=link)
        if data["status"] not in ("infeasible", "no_solution"):
            return data
        if "least_bytes" not in data:
            raise AcplanError("no plan satisfies the rules of the compiled graph")
        least = int(data["least_bytes"])
        which = "fits" if data["status"] == "infeasible" else "was found that fits"
        text = (
            f"budget: no plan of the compiled graph {which} {data['budget_bytes']:,} bytes; "
            f"one needs {least:,}"
        )
        if self._strict:
            raise AcplanError(text, exit_code=3)
        self._warn(f"{text}; the graph is planned for that budget")
        return plan_graph(graph, least, self._time_limit, link=link)

    def _fall_back(self, error: Exception) -> None:
        if self._strict:
            raise error
        reason = reason_of(error, "planning")
        self._warn(f"PyTorch partitions a graph: {reason}")

    def _warn(self, message: str) -> None:
        if message not in self._warnings_given:
            self._warnings_given.add(message)
            warnings.warn(message, stacklevel=2)

    def _remember(self, graph_plan: _GraphPlan, graphs: Graphs, num_fwd_outputs: int) -> None:
        # Inductor changes the graphs that it gets.
        forward, backward = (_copy(module) for module in graphs)
        if graph_plan.key:
            assert self.step_plan is not None
            self.step_plan.modules[graph_plan.key] = (forward, backward)
            return
        plan = CompiledPlan(
            graph_plan.graph["model"]["name"], graph_plan.data, graph_plan.graph,
            forward, backward, num_fwd_outputs,
        )  # fmt: skip
        self.plans.append(plan)
        _LOGGER.info("%r", plan)


def _refuse_meta(model: torch.nn.Module) -> None:
    tensors = (*model.named_parameters(), *model.named_buffers())
    name_on_meta = next((name for name, tensor in tensors if tensor.is_meta), None)
    if name_on_meta is not None:
        raise AcplanError(
            f"{name_on_meta} is on the meta device, where nothing can be trained; call the "
            "model after to_empty(device=...), which keeps the compiled code"
        )


def _copy(module: GraphModule) -> GraphModule:
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)


def _frame_name() -> str:
    """Returns the number of the code that is compiled, the same for all shapes, or ""."""
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


def device_of(device: str | Device | None) -> Device:
    if device == "cuda":
        return measured_device()
    if device is not None:
        return find_device(device)
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        devices = (d for d in DEVICES.values() if d.product == name)
        return next(devices, DEVICES["a100"])
    return DEVICES["a100"]


@with_old_name("held", "other_memory", (int, str))
def partitioner(
    budget: Budget,
    *,
    model: torch.nn.Module | None = None,
    optimizer: OptimizerLike = None,
    other_memory: int | str = 0,
    strict: bool = False,
    device: str | Device | None = None,
    fused: bool = True,
    time_limit: float | None = None,
    offload: str | bool | None = None,
    host_memory: int | str | None = None,
) -> Partitioner:
    """Returns a function that torch.compile takes as options={"custom_partitioner_fn": ...}
    (PyTorch 2.9 and newer), and aot_autograd and aot_module_simplified as partition_fn (2.8):
    for each graph, it saves what lets backward compute least again while the step stays within
    the budget.

    budget:     bytes, "20GiB", a share such as "60%" of what the step needs if everything is
                saved, or "min".
    model:      the model whose parameters and buffers count besides those in the graph.
    optimizer:  the optimizer whose states count, too: an instance, a name of OPTIMIZERS, a
                class.
    other_memory: bytes or a size that the step needs besides.
    strict:     raises AcplanError if nothing fits, with the least budget, or if acplan fails.
                Else that budget is planned for, or PyTorch partitions, with one warning.
    device:     the device whose run-times count: a name of DEVICES, "cuda" to measure operators
                on the current one; by default the current one, if known, else an A100.
    fused:      run-times are those of Inductor's kernels; False: of each operator by itself.
    time_limit: seconds to search.
    offload:    the link to the host's memory, where saved tensors may wait: its rate in each
                direction, such as "25GB/s", its name, such as "pcie4" or "gh200", or True for
                that of the device.
    host_memory: the most bytes that wait there.
    """
    if not _TELLS_STATIC_INPUTS:
        raise AcplanError(
            f"partitioner: PyTorch {torch.__version__} does not tell a partitioner which "
            "inputs are parameters; expected 2.8 or newer"
        )
    held_bytes = size_bytes("other_memory", other_memory)
    require_budget(budget)
    require_time_limit(time_limit)
    if isinstance(optimizer, str):
        named_optimizer(optimizer)
    if optimizer is not None and model is None:
        raise AcplanError("optimizer: needs model, whose parameters determine its memory")
    own_device = device_of(device)
    return Partitioner(
        budget,
        own_device,
        StepMemory(model, optimizer, held_bytes),
        strict=strict,
        is_fused=fused,
        time_limit=time_limit,
        link=link_of(offload, host_memory, known_as(own_device.name)),
    )


@with_old_name("held", "other_memory", (int, str))
def compile(
    model: torch.nn.Module,
    budget: Budget,
    *,
    blocks: Iterable[torch.nn.Module] | None = None,
    optimizer: OptimizerLike = None,
    other_memory: int | str = 0,
    strict: bool = False,
    device: str | Device | None = None,
    time_limit: float | None = None,
    offload: str | bool | None = None,
    host_memory: int | str | None = None,
    backend: str = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Returns torch.compile(model, ...), whose training step stays within the budget: see
    acplan.partitioner. backend is "inductor" or "aot_eager"; mode, options, dynamic and
    fullgraph are torch.compile's.

    blocks: these modules of the model are compiled, each by itself, by their method compile,
            and the model is returned.

    At its first call with gradients, all graphs that the step runs are found by a step on fake
    tensors, and planned together. acplan.compiled_plans(compiled) has that plan, or, if the
    step is one graph, the plan of that graph.
    """
    require_module(model, "compile")
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        raise AcplanError("compile: the model is compiled already, by torch.compile")
    compiler_options = options_of(backend, mode, options)
    compilation = Compilation(
        model, blocks_of(model, blocks), backend, compiler_options, kwargs
    )
    partition_fn = partitioner(
        budget,
        model=model,
        optimizer=optimizer,
        other_memory=other_memory,
        strict=strict,
        device=device,
        fused=backend != "aot_eager",
        time_limit=time_limit,
        offload=offload,
        host_memory=host_memory,
    )
    compiled = compilation.apply(_arguments(partition_fn, compilation))
    object.__setattr__(compiled, _ATTRIBUTE, partition_fn)
    is_one_graph = bool(kwargs.get("fullgraph")) and not compilation.blocks
    can_be_planned = not compilation.is_shared and (compiles_fakes() or compilation.blocks)
    if can_be_planned and not is_one_graph:
        plan_at_first_call(compiled, partition_fn.plan_step, compilation)
    return compiled


_ATTRIBUTE = "_acplan_partitioner"


def compiled_plans(compiled: Any) -> tuple[CompiledPlan | StepPlan, ...]:
    """Returns the plan of the step of a model from acplan.compile, if the step is several
    graphs, and those of the other graphs, as far as they have run."""
    partition_fn = vars(compiled).get(_ATTRIBUTE) if hasattr(compiled, "__dict__") else None
    if not isinstance(partition_fn, Partitioner):  # or what a copy has in place of one
        raise AcplanError("compiled_plans: expected what acplan.compile returns")
    return _plans_of(partition_fn)


def _plans_of(partition_fn: Partitioner) -> tuple[CompiledPlan | StepPlan, ...]:
    return (*([partition_fn.step_plan] if partition_fn.step_plan else []), *partition_fn.plans)


def verify_compiled(compiled: Any) -> tuple[Verification, ...]:
    """Returns, for the step, and for each graph that was planned by itself, the predicted
    memory beside that of the graphs, run node by node on fake tensors."""
    is_made = isinstance(compiled, Partitioner)
    plans = _plans_of(compiled) if is_made else compiled_plans(compiled)
    return tuple(plan.verify() for plan in plans)


def _arguments(partition_fn: Partitioner, compilation: Compilation) -> dict[str, Any]:
    if compilation.backend == "aot_eager":
        return {"backend": _aot_eager(partition_fn)}
    if not inductor_takes_partitioners():
        return {"backend": _inductor(partition_fn, compilation.options)}
    options = compilation.options | {PARTITIONER_OPTION: partition_fn}
    return {"backend": "inductor", "options": options}


def _inductor(partition_fn: Partitioner, options: dict[str, Any]) -> Callable[..., Any]:
    """Returns Inductor of PyTorch 2.8, which has no option for a partitioner."""
    compiled = torch._TorchCompileInductorWrapper(None, options, None)

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Any:
        with partitioning_by(partition_fn):
            return compiled(module, inputs)

    return backend


def _aot_eager(partition_fn: Partitioner) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    return aot_autograd(
        fw_compiler=boxed_nop, partition_fn=partition_fn, keep_inference_input_mutations=True
    )
