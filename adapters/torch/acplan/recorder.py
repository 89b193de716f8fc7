"""Records one training step: operators, storages, module calls, and what
autograd saves."""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from acplan.devices import Device
from acplan.inner_passes import InnerPasses, borrows_parameters, current_pass
from acplan.outside import statistics_of
from acplan.sources import SourceLines
from acplan.standing_in import StandIn
from acplan.values import operands, set_value, value_of, written_by
from acplan.workspaces import persistent_bytes, workspace_bytes

# Bookkeeping that no checkpointing policy sees (torch.utils.checkpoint), and
# whose number differs between a forward pass and its recomputation.
_INVISIBLE = frozenset({"aten.detach.default", "prim.device.default"})


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Those that have memory."""
    return [
        leaf
        for leaf in tree_leaves(values)
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, StandIn)
    ]


@dataclasses.dataclass(eq=False)
class Storage:
    bytes: int
    born: int
    on_device: bool
    freed: int | None = None
    category: str = ""


@dataclasses.dataclass(eq=False)
class Tensor:
    """A view of a storage; `base` is the tensor that it was made from, or -1."""

    storage: int
    base: int
    shape: tuple[Any, ...]
    freed: int | None = None


@dataclasses.dataclass
class Operator:
    name: str
    call: int
    runtime_ms: float
    reads: list[int]
    outputs: list[int]
    results: list[int]
    mutates: list[int]
    is_view: bool
    is_random: bool
    cast_of: int | None  # the trained leaf whose cast autocast keeps until it ends
    source: int  # its line in the table of sources, or -1
    # Running statistics that it moves on and reads nothing of.
    statistics: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Call:
    module: int
    parent: int
    start: int
    end: int
    inputs: list[int]
    arguments: list[int]
    outputs: list[int]
    no_grad: bool
    backward_start: int | None = None
    backward_end: int | None = None


@dataclasses.dataclass
class Saved:
    storage: int
    tensor: int
    requires_grad: bool
    packed: int
    call: int
    unpacked: int | None = None
    unpacks: int = 0
    local_end: int | None = None
    released: int | None = None


class _Shape:
    """What a stand-in for a tensor needs to know of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.size = tensor.shape
        self.stride = tensor.stride()
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.value = value_of(tensor)


class _Kept:
    """What autograd holds in place of a tensor that it saved."""

    __slots__ = ("tensor", "shape", "saved", "__weakref__")

    def __init__(
        self, tensor: torch.Tensor | None, shape: _Shape, saved: Saved
    ) -> None:
        self.tensor = tensor
        self.shape = shape
        self.saved = saved


class Recorder(TorchDispatchMode):
    """Everything that happens while it is active. Times count operators.

    `device` gives operators their run-times; without one they have none.
    `on_operator` is called after each. Where it `forgets_casts`, autocast keeps none,
    so that every use of a weight casts it. What its `kernels`, if any, allocate beside
    their results lives while they run.
    """

    def __init__(
        self,
        device: Device | None = None,
        on_operator: Callable[[], object] | None = None,
        forgets_casts: bool = False,
        kernels: Device | None = None,
        sources: SourceLines | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []
        self.storages: list[Storage] = []
        self.tensors: list[Tensor] = []
        self.calls: list[Call] = []
        self.saved: list[Saved] = []
        self.inner_passes = InnerPasses()
        self._device = device
        self._forgets_casts = forgets_casts
        self._kernels = kernels
        self._sources = sources
        self._on_operator = on_operator
        self._ids: dict[int, int] = {}
        self._tensor_ids: dict[int, int] = {}
        self._latest: dict[Any, int] = {}
        self._open_calls: list[int] = []
        self._is_quiet = False
        self._is_forward = True
        self._gradient_hooks: list[torch.utils.hooks.RemovableHandle] = []

    @property
    def now(self) -> int:
        return len(self.operators)

    @property
    def counts_workspaces(self) -> bool:
        return self._kernels is not None

    def add_persistent_workspace(self) -> None:
        """What libraries of kernels keep, as if it were there before the step."""
        if self._kernels is not None:
            size = persistent_bytes(self._kernels)
            self.storages.append(Storage(size, -1, True, None, "buffer"))

    def storage_of(self, tensor: torch.Tensor, born: int = -1) -> int:
        """The index of a tensor's storage; one not seen before was born then."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._ids.get(key)
        if known is not None:
            return known
        index = len(self.storages)
        entry = Storage(storage.nbytes(), born, tensor.device.type == "cuda")
        self.storages.append(entry)
        self._ids[key] = index

        def on_free() -> None:
            if self._ids.get(key) == index:
                del self._ids[key]
            entry.freed = self.now

        _on_death(storage, on_free)
        return index

    def on_fetch(self, tensor: torch.Tensor) -> None:
        """A copy from the host comes into its memory, beside what runs."""
        self.storage_of(tensor, self.now)

    def storages_of(self, values: Any, born: int = -1) -> list[int]:
        return sorted({self.storage_of(t, born) for t in tensors_in(values)})

    def _tensor_of(self, tensor: torch.Tensor, among: Iterable[int] = ()) -> int:
        """The index of a tensor. Autograd hands on copies of what it was given; the
        one most like it, of those named first of all, stands for them."""
        storage = self.storage_of(tensor)
        known = self._tensor_ids.get(tensor._cdata)
        if known is not None and self.tensors[known].storage == storage:
            return known
        shape = _shape_of(tensor, storage)
        for index in among:
            if self.tensors[index].shape == shape:
                return index
        index = self._latest.get(shape, self._latest.get(storage, -1))
        return index if index >= 0 else self._new_tensor(tensor, -1)

    def _new_tensor(self, tensor: torch.Tensor, base: int) -> int:
        storage = self.storage_of(tensor)
        key, index = tensor._cdata, len(self.tensors)
        entry = Tensor(storage, base, _shape_of(tensor, storage))
        self.tensors.append(entry)
        self._tensor_ids[key] = index
        self._latest[entry.shape] = self._latest[storage] = index

        def on_free() -> None:
            if self._tensor_ids.get(key) == index:
                del self._tensor_ids[key]
            entry.freed = self.now

        _on_death(tensor, on_free)
        return index

    def _results(
        self, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
    ) -> list[int]:
        """The tensors that an operator of the forward pass makes."""
        if not self._is_forward:
            return []
        bases: dict[int, int] = {}
        for tensor in read:
            bases.setdefault(self.storage_of(tensor), self._tensor_of(tensor))
        arguments = {id(tensor) for tensor in read}
        return [
            self._new_tensor(tensor, bases.get(self.storage_of(tensor), -1))
            for tensor in written
            if id(tensor) not in arguments
        ]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._is_quiet:
            return out
        name = str(func)
        if self._is_forward and current_pass() >= 0:
            self.inner_passes.runs(self._open_calls)
        read, written = operands(args, kwargs), operands(out)
        if name in _INVISIBLE:
            self._results(read, written)
            return out
        reads = sorted({self.storage_of(t) for t in read})
        outputs = sorted({self.storage_of(t, self.now) for t in written})
        results = self._results(read, written)
        if self._kernels is not None:
            self._add_workspace(
                workspace_bytes(func, args, kwargs, out, self._kernels)
            )
        mutates = written_by(func, args, kwargs)
        is_view = bool(written) and not mutates and set(outputs) <= set(reads)
        is_free = is_view or not written or "empty" in name
        self.operators.append(
            Operator(
                name=name,
                call=self._open_calls[-1] if self._open_calls else -1,
                runtime_ms=0.0
                if is_free or self._device is None
                else self._device.runtime_ms(func, args, kwargs, out, read, written),
                reads=reads,
                outputs=outputs,
                results=results,
                mutates=sorted({self.storage_of(t) for t in mutates}),
                is_view=is_view,
                is_random=_is_random(func, args, kwargs),
                cast_of=reads[0]
                if self._is_forward and _is_kept_cast(name, read, written)
                else None,
                source=-1 if self._sources is None else self._sources.of_operator(),
                statistics=self.storages_of(statistics_of(func, args, kwargs)),
            )
        )
        if self._on_operator:
            self._on_operator()
        # Not while autocast is casting, which holds its lock.
        if self._forgets_casts and name != "aten._to_copy.default":
            torch.clear_autocast_cache()
        return out

    def _add_workspace(self, size: int) -> None:
        """Of the operator that runs."""
        if size:
            storage = Storage(size, self.now, True, self.now + 1, "temporary")
            self.storages.append(storage)

    def watch_calls(
        self, modules: Iterable[torch.nn.Module], but_root: bool = False
    ) -> list[torch.utils.hooks.RemovableHandle]:
        """Records calls of these modules, by their place, until `end_forward`."""
        handles = []
        for index, module in enumerate(modules):
            if but_root and index == 0:
                continue
            handles.append(
                module.register_forward_pre_hook(
                    self._on_enter(index), prepend=True, with_kwargs=True
                )
            )
            handles.append(module.register_forward_hook(self._on_leave))
        return handles

    @contextlib.contextmanager
    def call_of_root(self) -> Iterator[None]:
        """What runs meanwhile is one call of the first module, which is then no unit."""
        inside = Call(0, -1, self.now, self.now, [], [], [], no_grad=True)
        self._open_calls.append(len(self.calls))
        self.calls.append(inside)
        yield
        self._open_calls.pop()
        inside.end = inside.backward_start = self.now

    def end_forward(self) -> None:
        self._is_forward = False

    def _on_enter(self, index: int) -> Callable[..., None]:
        def on_enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not self._is_forward:
                return
            call = Call(
                module=index,
                parent=self._open_calls[-1] if self._open_calls else -1,
                start=self.now,
                end=self.now,
                inputs=self.storages_of((args, kwargs)),
                arguments=[
                    self._tensor_of(a) for a in args if isinstance(a, torch.Tensor)
                ],
                outputs=[],
                no_grad=not torch.is_grad_enabled(),
            )
            if borrows_parameters(module):
                self.inner_passes.borrows(len(self.calls))
            self._open_calls.append(len(self.calls))
            self.calls.append(call)

            def on_input_gradient(_: torch.Tensor) -> None:
                if not self._is_forward:
                    call.backward_end = self.now

            self._watch_gradients((args, kwargs), on_input_gradient)

        return on_enter

    def _on_leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if not self._is_forward:
            return
        call = self.calls[self._open_calls.pop()]
        call.end = self.now
        call.outputs = self.storages_of(out)

        def on_output_gradient(_: torch.Tensor) -> None:
            if call.backward_start is None and not self._is_forward:
                call.backward_start = self.now

        self._watch_gradients(out, on_output_gradient)

    def _watch_gradients(
        self, values: Any, action: Callable[[torch.Tensor], None]
    ) -> None:
        # Hooks of single tensors, as those of several keep gradients alive.
        for tensor in tensors_in(values):
            if tensor.requires_grad:
                self._gradient_hooks.append(tensor.register_hook(action))

    def ignore_gradients(self) -> None:
        for hook in self._gradient_hooks:
            hook.remove()
        self._gradient_hooks.clear()

    def recording_saved(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Autograd keeps what it keeps; records from when to when."""
        return self._saved_hooks(keeps=True)

    def dropping_saved(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Autograd keeps nothing and is given stand-ins, so that a storage is freed
        when everything but autograd has let go of it."""
        return self._saved_hooks(keeps=False)

    def _saved_hooks(self, keeps: bool) -> torch.autograd.graph.saved_tensors_hooks:
        def pack(tensor: torch.Tensor) -> _Kept:
            last = self.operators[-1].results if self.operators else []
            saved = Saved(
                storage=self.storage_of(tensor),
                tensor=self._tensor_of(tensor, among=last),
                requires_grad=tensor.requires_grad,
                packed=self.now,
                call=self._open_calls[-1] if self._open_calls else -1,
            )
            self.saved.append(saved)
            kept = _Kept(self._to_keep(tensor, keeps), _Shape(tensor), saved)

            def on_release() -> None:
                saved.released = self.now

            _on_death(kept, on_release)
            return kept

        def unpack(kept: _Kept) -> torch.Tensor:
            is_open = self._open_calls if self._is_forward else None
            self.inner_passes.asks(kept.saved, self.now, is_open)
            return self._stand_in(kept)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _to_keep(self, tensor: torch.Tensor, keeps: bool) -> torch.Tensor | None:
        if not _needs_stand_in(tensor):
            return tensor
        if not keeps:
            return None
        if not tensor.requires_grad:
            return tensor
        # Its own graph node would hold an operator's result, and that the node.
        with self._quiet():
            return tensor.detach()

    def _stand_in(self, kept: _Kept) -> torch.Tensor:
        # A checkpointed tensor is let go by the backward node that unpacks it, the
        # original only after that node. To see when, the node gets a tensor with a
        # storage of its own, which costs nothing where tensors are fake.
        saved = kept.saved
        if kept.tensor is not None and (
            not _needs_stand_in(kept.tensor)
            # Where the pass makes a graph, what it saves in turn is the original.
            or (self._is_forward and torch.is_grad_enabled())
        ):
            saved.local_end = self.now
            return kept.tensor
        shape = kept.shape
        with self._quiet(), torch.no_grad():
            stand_in = torch.empty_strided(
                shape.size, shape.stride, dtype=shape.dtype, device=shape.device
            )
        set_value(stand_in, shape.value)
        storage = stand_in.untyped_storage()
        key = storage._cdata
        self._ids[key] = saved.storage

        def on_free() -> None:
            self._ids.pop(key, None)
            saved.local_end = self.now

        _on_death(storage, on_free)
        return stand_in

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False


def _needs_stand_in(tensor: torch.Tensor) -> bool:
    # Not a parameter, which its module holds, nor what lies on the CPU.
    is_parameter = tensor.is_leaf and tensor.requires_grad
    return tensor.device.type == "cuda" and not is_parameter


def _shape_of(tensor: torch.Tensor, storage: int) -> tuple[Any, ...]:
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _is_kept_cast(
    name: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> bool:
    return (
        name == "aten._to_copy.default"
        and read[0].dtype == torch.float32
        and read[0].is_leaf
        and read[0].requires_grad
        and written[0].dtype in (torch.bfloat16, torch.float16)
    )


def _on_death(thing: Any, action: Callable[[], None]) -> None:
    weakref.finalize(thing, action).atexit = False


def _is_random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Attention is tagged so, and draws nothing where it drops nothing out."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    parameters = func._schema.arguments
    given = {p.name: p.default_value for p in parameters if p.has_default_value()}
    given |= {p.name: value for p, value in zip(parameters, args)} | kwargs
    return bool(given.get("dropout_p", 1.0))

