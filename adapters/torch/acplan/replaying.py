"""A selective checkpoint: forward writes a tape of what it decided, and the
recomputation is read off it.

Whatever the policy says, losses and gradients are those without it:

- What forward saved is handed out at the same place of the recomputation, and only as
  long as that runs the operators of forward. From the first difference on, all runs.
- Where a saved operator drew random numbers, its generators are set to where forward
  left them, so that all that is drawn later is drawn again.
- What was written to in place since it was saved is not handed out: it is recomputed.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import SAC_IGNORED_OPS

from acplan.errors import AcplanError

Decide = Callable[[Any], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class _Traits:
    """What the modes need to know of an operator, whatever it is called with."""

    is_ignored: bool
    is_plain: bool
    is_mutable: bool
    is_random: bool
    dropout_place: int
    is_cast: bool
    is_view: bool
    writes: bool


@functools.cache
def _traits_of(func: Any) -> _Traits:
    schema = getattr(func, "_schema", None)
    arguments = schema.arguments if schema else ()
    names = [argument.name for argument in arguments]
    is_mutable = bool(schema and schema.is_mutable)
    # What libraries register may draw without a tag that says so.
    is_random = getattr(func, "namespace", "") not in ("aten", "prim", "prims") or (
        torch.Tag.nondeterministic_seeded in func.tags
    )
    is_cast = func is torch.ops.aten._to_copy.default
    is_view = not is_mutable and any(argument.alias_info for argument in arguments)
    return _Traits(
        is_ignored=func in SAC_IGNORED_OPS,
        is_plain=not (is_mutable or is_random or is_cast or is_view),
        is_mutable=is_mutable,
        is_random=is_random,
        dropout_place=names.index("dropout_p") if "dropout_p" in names else -1,
        is_cast=is_cast,
        is_view=is_view,
        # Schemas do not always say that statistics are written to.
        writes=is_mutable or "running_mean" in names,
    )


def _draws(traits: _Traits, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Attention is tagged as random, and draws nothing where it drops nothing out."""
    if not traits.is_random or traits.dropout_place < 0:
        return traits.is_random
    given = args[traits.dropout_place :]
    return bool(given[0] if given else kwargs.get("dropout_p"))


def _is_kept_cast(tensor: torch.Tensor) -> bool:
    """Whether autocast keeps casts of it, so that the recomputation, which has no
    such casts at hand, runs them when forward did not, or elsewhere."""
    return tensor.is_leaf and tensor.requires_grad and tensor.dtype == torch.float32


def _generator(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Generator | None:
    """What the operator draws from."""
    if isinstance(given := kwargs.get("generator"), torch.Generator):
        return given
    tensors = (a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor))
    tensor = next(tensors, None)
    device = kwargs.get("device") if tensor is None else tensor.device
    device = torch.device(device or "cpu")
    if device.type == "cpu":
        return torch.default_generator
    of_type = getattr(getattr(torch, device.type, None), "default_generators", ())
    index = device.index or 0
    # On fake tensors there may be no device, and nothing is drawn.
    return of_type[index] if index < len(of_type) else None


def _alias(value: Any) -> Any:
    """The same memory, without the graph that autograd is about to hang on the tensor,
    and without its count of writes."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class _Saved:
    """A saved result, until it is handed out."""

    __slots__ = ("func", "has_value", "value", "after")

    def __init__(self, func: Any, out: Any) -> None:
        self.func = func
        self.has_value = True
        is_tensor = isinstance(out, torch.Tensor)
        self.value = _alias(out) if is_tensor else tree_map(_alias, out)
        self.after: tuple[torch.Generator, torch.Tensor] | None = None

    def take(self) -> Any:
        value = self.value
        self.drop()
        return value

    def drop(self) -> None:
        self.has_value = False
        self.value = None


class Tape:
    """What one call of a unit ran, and saved."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.casts: dict[tuple[int, torch.dtype | None], _Saved] = {}
        self.first_states: dict[torch.Generator, torch.Tensor] = {}
        self.skips_writes = False
        self._is_used = False
        self._outputs: list[tuple[torch.Tensor, int]] = []

    def saved(self) -> Iterator[_Saved]:
        yield from (item for item in self.items if type(item) is _Saved)
        yield from self.casts.values()

    def saved_bytes(self) -> int:
        sizes = {
            storage._cdata: storage.nbytes()
            for saved in self.saved()
            for tensor in _tensors(saved.value)
            for storage in (tensor.untyped_storage(),)
        }
        return sum(sizes.values())

    def watch(self, outputs: Any) -> None:
        """The unit's outputs, which may be written to in place and be saved."""
        saved = {_memory(t) for item in self.saved() for t in _tensors(item.value)}
        if not saved:
            return
        with torch.no_grad():
            self._outputs = [
                (tensor.detach(), tensor._version)
                for tensor in _tensors(outputs)
                if _memory(tensor) in saved and not tensor.is_inference()
            ]

    def prepare(self) -> None:
        """Forgets what cannot be handed out (again)."""
        changed = any(tensor._version != count for tensor, count in self._outputs)
        self._outputs.clear()
        if changed or self._is_used:
            self.drop()
        self._is_used = True

    def drop(self) -> None:
        for saved in self.saved():
            saved.drop()


class _Writes:
    """Which saved memory may be written to in place by an operator that is saved too,
    that is left out of the recomputation: what was made by a saved operator, as long
    as nothing that runs again has read it."""

    _CLEAN, _READ, _RUNS, _SHOWN = range(4)

    def __init__(self) -> None:
        self._made: dict[int, int] = {}

    def may_skip(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        keys = [_memory(tensor) for tensor in _written(func, args, kwargs)]
        return None not in keys and all(
            self._made.get(key, self._CLEAN) == self._CLEAN
            for key in keys
            if key is not None
        )

    def must_forget(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> bool:
        """Whether what it writes to, running again, has been saved."""
        return any(
            key is None or self._made.get(key, self._RUNS) != self._RUNS
            for key in map(_memory, _written(func, args, kwargs))
        )

    def forget(self) -> None:
        self._made = dict.fromkeys(self._made, self._RUNS)

    def note(
        self, traits: _Traits, read: list[torch.Tensor], out: Any, is_saved: bool
    ) -> None:
        keys = {_memory(tensor) for tensor in read}
        for key in keys:
            is_read = not is_saved and not traits.is_view
            if is_read and key in self._made and self._made[key] == self._CLEAN:
                self._made[key] = self._READ
        for key in map(_memory, _tensors(out)):
            if key is None:
                continue
            if key not in keys:
                self._made[key] = self._CLEAN if is_saved else self._RUNS
            elif is_saved and self._made.get(key, self._RUNS) == self._RUNS:
                if not traits.is_mutable:
                    self._made[key] = self._SHOWN


def _memory(tensor: torch.Tensor) -> int | None:
    """Names its storage; what holds several tensors has no memory of its own."""
    if is_traceable_wrapper_subclass(tensor):
        return None
    return int(tensor.untyped_storage()._cdata)


def _written(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    values = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            values.append(
                args[place] if place < len(args) else kwargs.get(argument.name)
            )
    return _tensors(values)


class _Mode(TorchDispatchMode):
    """Sees nothing of what fully_shard does around the forward of modules in a unit:
    gathering parameters, casting inputs. That happens each time in its own way, when
    the unit runs again too.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self, tape: Tape, sharded: Sequence[torch.nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._sharded = sharded
        self._is_blind = False
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> "_Mode":
        for module in self._sharded:
            # As the first hook and the last one, before forward and after it.
            self._handles += [
                module.register_forward_pre_hook(self._close_eyes, prepend=True),
                module.register_forward_pre_hook(self._open_eyes),
                module.register_forward_hook(self._close_eyes, prepend=True),
                module.register_forward_hook(self._open_eyes),
            ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _close_eyes(self, *_: Any) -> None:
        self._is_blind = True

    def _open_eyes(self, *_: Any) -> None:
        self._is_blind = False


class Forward(_Mode):
    """Writes the tape. `decide` is asked once for each operator, in order."""

    def __init__(
        self,
        tape: Tape,
        decide: Decide,
        on_end: Callable[[Tape], None],
        sharded: Sequence[torch.nn.Module] = (),
        saves_writes: bool = False,
    ) -> None:
        super().__init__(tape, sharded)
        self._decide = decide
        self._on_end = on_end
        self._writes = _Writes() if saves_writes else None
        self._saved_in: dict[int | None, list[_Saved]] = {}

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if kind is None:
            self._on_end(self._tape)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        traits = _traits_of(func)
        if self._is_blind or traits.is_ignored:
            out = func(*args, **kwargs)
            # A tensor's device says nothing of what is in it.
            if self._writes and func is not torch.ops.prim.device.default:
                self._writes.note(traits, _tensors((args, kwargs)), out, False)
            return out
        is_saved = self._decide(func)
        if not traits.is_plain or self._writes:
            return self._run_with_care(func, traits, is_saved, args, kwargs)
        out = func(*args, **kwargs)
        self._tape.items.append(self._saved(func, out) if is_saved else func)
        return out

    def _saved(self, func: Any, out: Any) -> _Saved:
        saved = _Saved(func, out)
        for tensor in _tensors(saved.value):
            self._saved_in.setdefault(_memory(tensor), []).append(saved)
        return saved

    def _run_with_care(
        self,
        func: Any,
        traits: _Traits,
        is_saved: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        tape = self._tape
        if traits.is_mutable:
            is_saved = is_saved and self._may_skip(func, args, kwargs)
            if not is_saved:
                self._forget_what_it_writes_to(func, args, kwargs)
        draws = _draws(traits, args, kwargs)
        generator = _generator(args, kwargs) if draws else None
        if generator is not None and generator is not torch.default_generator:
            # PyTorch may restore it when the unit runs again, and may not.
            if generator not in tape.first_states:
                tape.first_states[generator] = generator.get_state()
        out = func(*args, **kwargs)
        if self._writes:
            self._writes.note(traits, _tensors((args, kwargs)), out, is_saved)
        item = func
        if is_saved:
            item = self._saved(func, out)
            if generator is not None:
                item.after = (generator, generator.get_state())
        if traits.is_cast and _is_kept_cast(args[0]):
            if is_saved:
                tape.casts[_cast_key(args, kwargs)] = item
        else:
            tape.items.append(item)
        return out

    def _may_skip(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        if self._writes and self._writes.may_skip(func, args, kwargs):
            self._tape.skips_writes = True
            return True
        return False

    def _forget_what_it_writes_to(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """It will run again, on what forward had there before."""
        if self._writes:
            if self._writes.must_forget(func, args, kwargs):
                self._writes.forget()
                self._tape.drop()
            return
        for tensor in _written(func, args, kwargs):
            for saved in self._saved_in.pop(_memory(tensor), ()):
                saved.drop()


def _cast_key(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, torch.dtype | None]:
    return id(args[0]), kwargs.get("dtype")


class Recomputation(_Mode):
    """Reads the tape."""

    def __init__(
        self,
        tape: Tape,
        fqn: str,
        module: torch.nn.Module,
        sharded: Sequence[torch.nn.Module] = (),
    ) -> None:
        super().__init__(tape, sharded)
        self._fqn = fqn
        self._module = module
        self._place = 0
        self._is_lost = False
        self._states: dict[torch.Generator, torch.Tensor] = {}

    def __enter__(self) -> "Recomputation":
        self._tape.prepare()
        self._place = 0
        self._is_lost = False
        for generator, state in self._tape.first_states.items():
            self._states[generator] = generator.get_state()
            generator.set_state(state)
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        for generator, state in self._states.items():
            generator.set_state(state)
        self._states.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_blind:
            return func(*args, **kwargs)
        traits = _traits_of(func)
        if traits.is_ignored:
            return func(*args, **kwargs)
        if traits.writes:
            args = tuple(map(self._spared, args))
            kwargs = {name: self._spared(value) for name, value in kwargs.items()}
        if self._is_lost:
            return func(*args, **kwargs)
        if traits.is_cast and _is_kept_cast(args[0]):
            cast = self._tape.casts.get(_cast_key(args, kwargs))
            if cast is not None and cast.has_value:
                return cast.take()
            return func(*args, **kwargs)
        items, place = self._tape.items, self._place
        self._place = place + 1
        item = items[place] if place < len(items) else None
        if item is func:
            return func(*args, **kwargs)
        if type(item) is not _Saved or item.func is not func:
            self._lose(func)
            return func(*args, **kwargs)
        if not item.has_value:
            return func(*args, **kwargs)
        if item.after:
            generator, state = item.after
            generator.set_state(state)
        return item.take()

    def _spared(self, value: Any) -> Any:
        """Buffers were written to in forward, and are not again."""
        is_buffer = isinstance(value, torch.Tensor) and any(
            value is buffer for buffer in self._module.buffers()
        )
        # Nothing is written to fake tensors, and the copy would be counted.
        return value.clone() if is_buffer and not is_fake(value) else value

    def _lose(self, func: Any) -> None:
        if self._tape.skips_writes:
            # What has been handed out may hold what is only written now.
            raise AcplanError(
                f"{self._fqn}: operator {self._place - 1} of the recomputation is "
                f"{func}, forward ran another one; a module that writes in place must "
                "run the same operators each time to be planned operator by operator"
            )
        self._is_lost = True
