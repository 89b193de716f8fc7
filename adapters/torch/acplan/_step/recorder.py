"""Records one training step: operators, storages, module calls, and what
autograd saves."""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from acplan._base import transforms
from acplan._base.call_arguments import tensors_given
from acplan._base.modules import borrows_parameters
from acplan._base.operators import (
    draws,
    is_kept_cast,
    is_of_nothing,
    statistics_of,
    traits_of,
    written_by,
)
from acplan._base.patching import replaced_here
from acplan._base.source_lines import SourceLines
from acplan._base.stand_ins import Shape, Turned, is_run_inside, shape_of
from acplan._base.tensors import is_sparse, tensors_in, tensors_of
from acplan._base.torchscript import has_unknown_state, is_scripted
from acplan._base.triton_kernels import is_launch
from acplan._device.devices import Device
from acplan._device.workspaces import persistent_bytes, workspace_bytes
from acplan._fakes.known_values import readers, set_value, value_of
from acplan._fakes.sparse_fakes import made_of, sparse_parts, structure_of
from acplan._step.inner_passes import InnerPasses, current_pass

# Bookkeeping that no checkpointing policy sees (torch.utils.checkpoint), and
# whose number differs between a forward pass and its recomputation.
_INVISIBLE = frozenset({"aten.detach.default", "prim.device.default"})
_STRIDED = torch.strided
_PLAIN = frozenset([torch.Tensor, torch._subclasses.FakeTensor])
# Which `__call__` of a module calls.
_CALL = "_call_impl"


@contextlib.contextmanager
def _own_call(
    module: torch.nn.Module, watched: Callable[..., Any], index: int
) -> Iterator[None]:
    """While it lasts, the call that the module or its class has of its own is watched."""
    own = vars(module)
    before = own.get(_CALL)
    own[_CALL] = functools.partial(watched, index, module, module._call_impl)
    try:
        yield
    finally:
        if before is None:
            del own[_CALL]
        else:
            own[_CALL] = before


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
    is_opaque: bool
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


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The shape of a tensor that autograd saved, and its values where they are known."""

    shape: Shape
    value: torch.Tensor | None


class _Kept:
    """What autograd holds in place of a tensor that it saved. One that consists of
    several is `remade` of others of their shapes."""

    __slots__ = ("tensor", "remade", "shapes", "saved", "__weakref__")

    def __init__(
        self,
        tensor: torch.Tensor | None,
        remade: "_Remade | None",
        parts: Iterable[torch.Tensor],
        saved: list[Saved],
    ) -> None:
        self.tensor = tensor
        self.remade = remade
        self.shapes = [_Shape(shape_of(part), value_of(part)) for part in parts]
        self.saved = saved


_Remade = Callable[[Sequence[torch.Tensor]], torch.Tensor]


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
        # Modules that torch.jit has compiled, or with such code that may not run again.
        self._scripted: set[int] = set()
        # Storages on the host that Python's own code reads, as no operator does.
        self.read_on_host: list[int] = []
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

    def __enter__(self) -> "Recorder":
        readers.append(self._note_read)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        readers.remove(self._note_read)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _note_read(self, tensor: torch.Tensor) -> None:
        storage = self.storage_of(tensor)
        if self._is_forward and storage not in self.read_on_host:
            self.read_on_host.append(storage)

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
        found = self.plain(tensors_in(values))
        return sorted({self.storage_of(part, born) for part in found})

    def plain(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors with memory that these are, or consist of."""
        if all(map(_has_memory, tensors)):
            return tensors
        found: list[torch.Tensor] = []
        with self._quiet():
            for tensor in map(transforms.unwrapped, tensors):
                if _has_memory(tensor):
                    found.append(tensor)
                elif is_run_inside(type(tensor)):
                    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
                    found += self.plain([getattr(tensor, name) for name in names])
                else:
                    found += sparse_parts(tensor)
        return found

    def _tensor_of(self, tensor: torch.Tensor, among: Iterable[int] = ()) -> int:
        """The index of a tensor. Autograd hands on copies of what it was given; the
        one most like it, of those named first of all, stands for them."""
        storage = self.storage_of(tensor)
        known = self._tensor_ids.get(tensor._cdata)
        if known is not None and self.tensors[known].storage == storage:
            return known
        shape = _view_key(tensor, storage)
        for index in among:
            if self.tensors[index].shape == shape:
                return index
        index = self._latest.get(shape, self._latest.get(storage, -1))
        return index if index >= 0 else self._new_tensor(tensor, -1)

    def latest_tensor_of(self, storage: int) -> int:
        """The index of the last tensor that was made in a storage."""
        places = range(len(self.tensors) - 1, -1, -1)
        return next((k for k in places if self.tensors[k].storage == storage), -1)

    def is_within(self, call: int, other: int) -> bool:
        """Whether a call is another one, or was made during it."""
        while call > other:
            call = self.calls[call].parent
        return call == other

    def _new_tensor(self, tensor: torch.Tensor, base: int) -> int:
        storage = self.storage_of(tensor)
        key, index = tensor._cdata, len(self.tensors)
        entry = Tensor(storage, base, _view_key(tensor, storage))
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
        if any(map(is_run_inside, types)):
            return NotImplemented
        kwargs = kwargs or {}
        is_unseen = self._is_quiet or is_of_nothing(func, args)
        out = func(*args, **kwargs)
        if is_unseen:
            return out
        name = str(func)
        if self._is_forward and current_pass() >= 0:
            self.inner_passes.runs(self._open_calls)
        read, made = self.plain(tensors_of(args, kwargs)), tensors_of(out)
        written = self.plain(made)
        if name in _INVISIBLE:
            self._results(read, written)
            return out
        reads = sorted({self.storage_of(t) for t in read})
        outputs = sorted({self.storage_of(t, self.now) for t in written})
        results = self._results(read, written)
        mutates = self.plain(written_by(func, args, kwargs))
        is_view = bool(written) and not mutates and set(outputs) <= set(reads)
        is_opaque = written is not made
        if is_opaque:
            outputs, results, is_view = [], [], False
        if self._kernels is not None:
            self._add_workspace(workspace_bytes(func, args, kwargs, out, self._kernels))
        if is_launch(func):
            read, written = self.plain(args[1]), mutates
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
                is_random=torch.Tag.nondeterministic_seeded in func.tags
                and draws(traits_of(func), args, kwargs),
                is_opaque=is_opaque,
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

    @contextlib.contextmanager
    def watching_calls(
        self, modules: Iterable[torch.nn.Module], but_root: bool = False
    ) -> Iterator[None]:
        """While it lasts, records calls of these modules, by their place, with all that
        their hooks run, as a unit calls them."""
        places: dict[int, int] = {}

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            place = places.get(id(module))
            if place is None:
                return plain(module, *args, **kwargs)
            of_module = functools.partial(plain, module)
            return self._watched(place, module, of_module, *args, **kwargs)

        # In the class: copies of a module, which libraries make of its attributes, are not
        # the module. But where it has a call of its own, that one calls.
        plain: Any = torch.nn.Module._call_impl
        with contextlib.ExitStack() as undo:
            for index, module in enumerate(modules):
                if but_root and index == 0:
                    continue
                if is_scripted(module) or has_unknown_state(module):
                    self._scripted.add(index)
                if _CALL not in vars(module) and type(module)._call_impl is plain:
                    places[id(module)] = index
                    continue
                undo.enter_context(_own_call(module, self._watched, index))
            undo.enter_context(replaced_here(torch.nn.Module, _CALL, call))
            undo.enter_context(transforms.without_hooks(self._refuse_open_calls))
            yield

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

    def _watched(
        self,
        index: int,
        module: torch.nn.Module,
        call_module: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not self._is_forward:
            return call_module(*args, **kwargs)
        is_alone = transforms.are_under_way()
        given = tensors_given(args, kwargs)
        call = Call(
            module=index,
            parent=self._open_calls[-1] if self._open_calls else -1,
            start=self.now,
            end=self.now,
            inputs=self.storages_of(given),
            arguments=self._arguments(args),
            outputs=[],
            no_grad=is_alone or index in self._scripted or not torch.is_grad_enabled(),
        )
        if borrows_parameters(module):
            self.inner_passes.borrows(len(self.calls))
        self._open_calls.append(len(self.calls))
        self.calls.append(call)

        def on_input_gradient(_: torch.Tensor) -> None:
            if not self._is_forward:
                call.backward_end = self.now

        def on_output_gradient(_: torch.Tensor) -> None:
            if call.backward_start is None and not self._is_forward:
                call.backward_start = self.now

        if not is_alone:
            self._watch_gradients(given, on_input_gradient)
        # They live no longer than without this.
        before = [*map(weakref.ref, given)]
        del given
        try:
            out = call_module(*args, **kwargs)
        except BaseException:
            self._give_up(call)
            raise
        finally:
            self._open_calls.pop()
            call.end = self.now
        results = _results(out, args, kwargs, before)
        call.outputs = self.storages_of(results)
        if not is_alone:
            self._watch_gradients(results, on_output_gradient)
        return out

    def _give_up(self, call: Call) -> None:
        """One that an exception ends has no results, and is no unit. One that ran nothing
        is as if it had not been made."""
        first = self._open_calls[-1]
        if call.start == self.now and not any(s.call >= first for s in self.saved):
            del self.calls[first:]

    def _refuse_open_calls(self) -> None:
        """None of them is a unit."""
        for place in self._open_calls:
            self.calls[place].no_grad = True

    def _arguments(self, args: tuple[Any, ...]) -> list[int]:
        given = (a for a in args if issubclass(type(a), torch.Tensor))
        return [self._tensor_of(part) for part in self.plain(list(given))]

    def _watch_gradients(self, values: Any, action: Callable[[torch.Tensor], None]) -> None:
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
            parts = self.plain([tensor])
            saved = [
                Saved(
                    storage=self.storage_of(part),
                    tensor=self._tensor_of(part, among=last) if part is tensor else -1,
                    requires_grad=tensor.requires_grad,
                    packed=self.now,
                    call=self._open_calls[-1] if self._open_calls else -1,
                )
                for part in parts
            ]
            self.saved += saved
            with self._quiet():
                remade = _remade(tensor) if _needs_stand_in(tensor) else None
            kept = _Kept(self._to_keep(tensor, keeps), remade, parts, saved)

            def on_release() -> None:
                for part in saved:
                    part.released = self.now

            _on_death(kept, on_release)
            return kept

        def unpack(kept: _Kept) -> torch.Tensor:
            is_open = self._open_calls if self._is_forward else None
            for saved in kept.saved:
                self.inner_passes.asks(saved, self.now, is_open)
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
        if kept.tensor is not None and (
            not _needs_stand_in(kept.tensor)
            # Where the pass makes a graph, what it saves in turn is the original.
            or (self._is_forward and torch.is_grad_enabled())
        ):
            for saved in kept.saved:
                saved.local_end = self.now
            return kept.tensor
        parts = [*map(self._made_for, kept.shapes, kept.saved)]
        if kept.remade is None:
            return parts[0]
        with self._quiet(), torch.no_grad():
            return kept.remade(parts)

    def _made_for(self, shape: _Shape, saved: Saved) -> torch.Tensor:
        with self._quiet(), torch.no_grad():
            made = torch.empty_strided(
                shape.shape.size,
                shape.shape.stride,
                dtype=shape.shape.dtype,
                device=shape.shape.device,
            )
        set_value(made, shape.value)
        # Of a conjugate, backward reads what it is one of without a copy.
        if isinstance(shape.shape, Turned):
            shape.shape.turn(made)
        storage = made.untyped_storage()
        key = storage._cdata
        self._ids[key] = saved.storage

        def on_free() -> None:
            self._ids.pop(key, None)
            saved.local_end = self.now

        _on_death(storage, on_free)
        return made

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before


def _results(
    out: Any, args: Any, kwargs: Any, before: list[weakref.ref[torch.Tensor]]
) -> list[torch.Tensor]:
    """What a call returned, and what it has put into what it was given."""
    known = {id(tensor()) for tensor in before}
    put = [t for t in tensors_given(args, kwargs) if id(t) not in known]
    found = {id(tensor): tensor for tensor in [*tensors_given(out), *tensors_in(out), *put]}
    return [*found.values()]


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether it is one piece of memory."""
    if type(tensor) not in _PLAIN and is_run_inside(type(tensor)):
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.layout is _STRIDED and not is_wrapped


def _needs_stand_in(tensor: torch.Tensor) -> bool:
    # Not a parameter, which its module holds, nor what lies on the CPU.
    is_parameter = tensor.is_leaf and tensor.requires_grad
    return tensor.device.type == "cuda" and not is_parameter


def _remade(tensor: torch.Tensor) -> "_Remade | None":
    """What makes one like a tensor that consists of others, of such."""
    if is_sparse(tensor):
        return functools.partial(made_of, structure_of(tensor))
    if not is_run_inside(type(tensor)):
        return None
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = (getattr(tensor, name) for name in names)
    kept = [None if part.is_floating_point() else part for part in inner]
    size, stride = tensor.size(), tensor.stride()
    unflatten = type(tensor).__tensor_unflatten__  # type: ignore[attr-defined]

    def remake(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        # By their offsets jagged tensors are known to be of one shape.
        given = {
            name: part if before is None else before
            for name, part, before in zip(names, parts, kept, strict=True)
        }
        made: torch.Tensor = unflatten(given, context, size, stride)
        return made

    return remake


def _view_key(tensor: torch.Tensor, storage: int) -> tuple[Any, ...]:
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _is_kept_cast(
    name: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> bool:
    return (
        name == "aten._to_copy.default"
        and is_kept_cast(read[0])
        and written[0].dtype in (torch.bfloat16, torch.float16)
    )


def _on_death(thing: Any, action: Callable[[], None]) -> None:
    weakref.finalize(thing, action).atexit = False
