"""Settings other than a plan with which a step needs less memory: each is a training step that
differs a little, to be traced like the step itself."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from acplan._base.errors import AcplanError
from acplan._base.offloaded_states import offload_states
from acplan._base.patching import replaced_here, set_attribute
from acplan._step.linear_cross_entropy import linear_cross_entropy
from acplan._step.optimizers import (
    OPTIMIZERS,
    OptimizerFn,
    OptimizerLike,
    named_optimizer,
    optimizer_like,
)
from acplan._step.training_step import TrainingStep, default_loss


class NotApplicable(AcplanError):
    """The step has nothing that the lever would change."""


Setting = Callable[[TrainingStep], AbstractContextManager[TrainingStep]]


# The parts of training that a lever changes, the mildest first: nothing except the order of
# sums; the precision of numbers; the parameters that are trained.
NOTHING, ROUNDING, METHOD = "nothing", "rounding", "the method"
CHANGES = (NOTHING, ROUNDING, METHOD)


@dataclasses.dataclass(frozen=True)
class Lever:
    """A setting to measure. `how` is what to write in the user's own code."""

    name: str
    how: str
    setting: Setting
    # At most one lever of a group can be set.
    group: str
    change: str = NOTHING
    # The options of acplan.trace that stand for it, as Python.
    options: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)


# --- The optimizer


def optimizer_made_again(step: TrainingStep) -> OptimizerFn:
    """Returns a function of the parameters, in the model's order, that makes its optimizer."""
    optimizer = step.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        own_parameters = [p for p in step.model.parameters() if p.requires_grad]

        def like(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            now = {id(old): new for old, new in zip(own_parameters, parameters, strict=True)}
            trained = {id(parameter) for parameter in parameters}
            return optimizer_like(optimizer, trained, lambda p: now.get(id(p), p))

        return like
    if isinstance(optimizer, str):
        return named_optimizer(optimizer)
    return OPTIMIZERS["adamw"] if optimizer is None else optimizer


def optimizer_setting(
    change: Callable[[torch.optim.Optimizer], torch.optim.Optimizer],
) -> Setting:
    @contextlib.contextmanager
    def setting(step: TrainingStep) -> Iterator[TrainingStep]:
        make = optimizer_made_again(step)
        optimizer: OptimizerLike = lambda parameters: change(make(parameters))  # noqa: E731
        yield dataclasses.replace(step, optimizer=optimizer)

    return setting


def implemented(
    fused: bool, foreach: bool
) -> Callable[[torch.optim.Optimizer], torch.optim.Optimizer]:
    def change(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        groups = optimizer.param_groups
        now = []
        for group in groups:
            if "foreach" not in group or (fused and "fused" not in group):
                name = type(optimizer).__name__
                raise NotApplicable(f"{name} has no such implementation")
            is_fused = bool(group.get("fused"))
            # None: PyTorch's choice, which is foreach on CUDA.
            is_foreach = not is_fused and group["foreach"] is not False
            now.append((is_fused, is_foreach))
        if all(pair == (fused, foreach) for pair in now):
            raise NotApplicable("it is already set")
        for group in groups:
            group["foreach"] = foreach
            if "fused" in group:
                group["fused"] = fused
        return optimizer

    return change


class _HalfStates(torch.optim.Optimizer):
    """An optimizer whose states are bfloat16 between steps; an update reads and writes the
    states of one parameter at a time, in the type that the optimizer itself has."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups
        self.state = inner.state

    # Traces pass no closure; PyTorch declares an overload for each.
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = self.inner.param_groups
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_of(parameter, group)
        self.inner.param_groups = groups

    def _step_of(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        own: dict[str, Any] = {"params": [parameter]}
        if "foreach" in group:
            own["foreach"] = False
        self.inner.param_groups = [{**group, **own}]
        state = self.inner.state[parameter]
        half_keys = [k for k, v in state.items() if _is_half(v, parameter)]
        for key in half_keys:
            state[key] = state[key].to(parameter.dtype)
        self.inner.step()
        state = self.inner.state[parameter]
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[key] = value.to(torch.bfloat16)


def _is_half(value: Any, parameter: torch.Tensor) -> bool:
    is_state = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    return is_state and value.dtype == torch.bfloat16


def _with_half_states(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    types = {p.dtype for group in optimizer.param_groups for p in group["params"]}
    if types == {torch.bfloat16}:
        raise NotApplicable("parameters, and so the state, are bfloat16 already")
    return _HalfStates(optimizer)


def _keeping_gradients(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    # It is changed for this optimizer alone, which is the trace's own.
    zero_grad = functools.partial(type(optimizer).zero_grad, optimizer, set_to_none=False)
    optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
    return optimizer


@contextlib.contextmanager
def _gradients_kept(step: TrainingStep) -> Iterator[TrainingStep]:
    if step.step_fn is not None:
        raise NotApplicable("step_fn decides what happens to gradients")
    with optimizer_setting(_keeping_gradients)(step) as changed:
        yield changed


@contextlib.contextmanager
def _gradients_dropped(step: TrainingStep) -> Iterator[TrainingStep]:
    own = step.step_fn
    if own is None:
        raise NotApplicable("they are set to None after the update already")

    def step_fn(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        own(model, optimizer)
        for parameter in model.parameters():
            parameter.grad = None

    yield dataclasses.replace(step, step_fn=step_fn)


# --- The loss


def _with_output_layer(model: torch.nn.Module) -> tuple[Any, torch.nn.Linear]:
    """Returns the model of transformers that makes logits, and its last layer."""
    module: Any
    for module in model.modules():
        # Wrappers pass the method on, and do not make the loss.
        if not hasattr(type(module), "get_output_embeddings"):
            continue
        layer = module.get_output_embeddings()
        if isinstance(layer, torch.nn.Linear):
            return module, layer
    raise NotApplicable("the model is not one of transformers that returns logits of tokens")


@contextlib.contextmanager
def _fused_loss(step: TrainingStep) -> Iterator[TrainingStep]:
    """Lets the last layer return its input, within the block, and the loss compute both."""
    owner, layer = _with_output_layer(step.model)
    plain = torch.nn.functional.cross_entropy
    hidden_states: list[torch.Tensor] = []
    losses: list[torch.Tensor] = []

    def layer_forward(hidden: torch.Tensor) -> torch.Tensor:
        hidden_states[:] = [hidden]
        losses.clear()
        return hidden

    def of_hidden(hidden: torch.Tensor, target: torch.Tensor, **options: Any) -> Any:
        loss = linear_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]),
            layer.weight,
            target.reshape(-1),
            layer.bias,
            **options,
        )
        losses.append(loss)
        return loss

    def cross_entropy(source: torch.Tensor, target: torch.Tensor, **options: Any) -> Any:
        if not hidden_states or source.shape[-1] != hidden_states[0].shape[-1]:
            return plain(source, target, **options)
        if options.get("label_smoothing") or options.get("weight") is not None:
            raise NotApplicable("its loss smooths or weighs labels")
        names = ("ignore_index", "reduction")
        loss_options = {name: options[name] for name in names if name in options}
        return of_hidden(source, target, **loss_options)

    def causal_loss(
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        if shift_labels is None:
            padded = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)
            shift_labels = padded[..., 1:].contiguous()
        if num_items_in_batch is None:
            return of_hidden(logits, shift_labels, ignore_index=ignore_index)
        total = of_hidden(logits, shift_labels, ignore_index=ignore_index, reduction="sum")
        return total / num_items_in_batch

    def loss_fn(output: Any) -> torch.Tensor:
        if len(losses) != 1:
            raise NotApplicable("its loss is not the cross entropy of its logits alone")
        loss: torch.Tensor = (step.loss_fn or default_loss)(output)
        return loss

    with contextlib.ExitStack() as undo:
        undo.enter_context(set_attribute(layer, "forward", layer_forward))
        if _has_causal_loss(owner):
            undo.enter_context(set_attribute(owner, "_loss_function", causal_loss, create=True))
        undo.enter_context(replaced_here(torch.nn.functional, "cross_entropy", cross_entropy))
        yield dataclasses.replace(step, loss_fn=loss_fn)


def _has_causal_loss(owner: Any) -> bool:
    function = getattr(owner, "loss_function", None)
    return getattr(function, "__name__", "") == "ForCausalLMLoss"


# --- The inputs


def batch_of(step: TrainingStep) -> int:
    """Returns the number of samples of a microbatch. Raises NotApplicable if the inputs do not
    have it in common."""
    leaves = tree_leaves((step.args, step.kwargs))
    sizes = {v.shape[0] for v in leaves if isinstance(v, torch.Tensor) and v.dim() > 0}
    if len(sizes) != 1:
        raise NotApplicable("the batch is not the first dimension of every input")
    return int(sizes.pop())


def split_microbatch(parts: int) -> Setting:
    """Returns the setting that divides each microbatch into so many."""

    @contextlib.contextmanager
    def setting(step: TrainingStep) -> Iterator[TrainingStep]:
        size = batch_of(step)
        if size % parts:
            raise NotApplicable(
                f"the batch is {size}, which cannot be "
                + ("halved" if parts == 2 else f"divided into {parts}")
            )
        leaves, shape = tree_flatten((step.args, step.kwargs))
        # Views would have the memory of the whole input.
        first_parts = [
            (v[: size // parts] if v.dim() > 0 else v).clone()
            if isinstance(v, torch.Tensor)
            else v
            for v in leaves
        ]
        args, kwargs = tree_unflatten(first_parts, shape)
        accumulate = parts * step.accumulate
        yield dataclasses.replace(step, args=args, kwargs=kwargs, accumulate=accumulate)

    return setting


@contextlib.contextmanager
def _channels_last(step: TrainingStep) -> Iterator[TrainingStep]:
    convolutions = [
        (module, name, parameter)
        for module in step.model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() == 4
    ]
    if not convolutions:
        raise NotApplicable("the model has no two-dimensional convolution")
    optimizer = optimizer_made_again(step)
    stand_ins: dict[int, torch.nn.Parameter] = {}
    with contextlib.ExitStack() as undo:
        for module, name, parameter in convolutions:
            if id(parameter) not in stand_ins:
                data = torch.empty_like(
                    parameter, device="meta", memory_format=torch.channels_last
                )
                stand_ins[id(parameter)] = torch.nn.Parameter(data, parameter.requires_grad)
            undo.callback(module._parameters.__setitem__, name, parameter)
            module._parameters[name] = stand_ins[id(parameter)]
        leaves, shape = tree_flatten((step.args, step.kwargs))
        last = [
            v.contiguous(memory_format=torch.channels_last)
            if isinstance(v, torch.Tensor) and v.dim() == 4
            else v
            for v in leaves
        ]
        args, kwargs = tree_unflatten(last, shape)
        yield dataclasses.replace(step, args=args, kwargs=kwargs, optimizer=optimizer)


def _attention(implementation: str) -> Setting:
    @contextlib.contextmanager
    def setting(step: TrainingStep) -> Iterator[TrainingStep]:
        modules = step.model.modules()
        by_name = (m for m in modules if hasattr(m, "set_attn_implementation"))
        model: Any = next(by_name, None)
        if model is None:
            raise NotApplicable("the model is not one of transformers")
        configs = _configurations(model.config)
        before = [(c, getattr(c, "_attn_implementation", None)) for c in configs]
        if all(current in (implementation, None) for _, current in before):
            raise NotApplicable("it is already set")
        try:
            model.set_attn_implementation(implementation)
            if model.config._attn_implementation != implementation:
                raise NotApplicable(f"the model has no attention {implementation!r}")
            yield step
        finally:
            for config, current in before:
                config._attn_implementation_internal = current

    return setting


def _configurations(config: Any) -> list[Any]:
    configs = [config]
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            configs += _configurations(part)
    return configs


def states_on_host(share: float) -> Setting:
    return optimizer_setting(functools.partial(offload_states, share=share))


def _optimizer_levers() -> Iterator[Lever]:
    for name, fused, foreach in (
        ("fused", True, False),
        ("foreach", False, True),
        ("for-loop", False, False),
    ):
        yield Lever(
            f"optimizer: {name}",
            f"fused={fused}, foreach={foreach} of the optimizer",
            optimizer_setting(implemented(fused, foreach)),
            "optimizer",
        )
    yield Lever(
        "optimizer: bf16 state",
        "an optimizer that keeps its state in bfloat16",
        optimizer_setting(_with_half_states),
        "optimizer",
        ROUNDING,
    )
    yield Lever(
        "optimizer: state on the host",
        "acplan.offload_states(optimizer)",
        states_on_host(1),
        "optimizer",
    )


def _levers() -> Iterator[Lever]:
    yield from _optimizer_levers()
    yield Lever(
        "gradients: kept",
        "optimizer.zero_grad(set_to_none=False)",
        _gradients_kept,
        "gradients",
    )
    yield Lever(
        "gradients: None after the update",
        "optimizer.zero_grad() at the end of step_fn",
        _gradients_dropped,
        "gradients",
    )
    yield Lever(
        "loss: fused with the last layer",
        "acplan.linear_cross_entropy, which computes both in chunks",
        _fused_loss,
        "loss",
        ROUNDING,
    )
    yield Lever(
        "half the microbatch",
        "half the batch, accumulate twice as often",
        split_microbatch(2),
        "microbatch",
    )
    yield Lever(
        "channels_last",
        "model and inputs .to(memory_format=torch.channels_last)",
        _channels_last,
        "channels_last",
    )
    for implementation in ("sdpa", "eager"):
        yield Lever(
            f"attention: {implementation}",
            f"model.set_attn_implementation({implementation!r})",
            _attention(implementation),
            "attention",
        )


LEVERS: Mapping[str, Lever] = {lever.name: lever for lever in _levers()}


@contextlib.contextmanager
def with_levers(step: TrainingStep, levers: Sequence[Lever]) -> Iterator[TrainingStep]:
    """Yields the step with all levers set; after the block the model is unchanged."""
    with contextlib.ExitStack() as stack:
        for lever in levers:
            step = stack.enter_context(lever.setting(step))
        yield step
