"""A selective checkpoint: forward writes a tape of what it decided, and the
recomputation is read off it.

Whatever the policy says, losses and gradients are those without it:

- What forward saved is handed out at the same place of the recomputation, and only as
  long as that runs the operators of forward. From the first difference on, all runs.
- Where a saved operator drew random numbers, its generators are set to where forward
  left them, so that all that is drawn later is drawn again.
- What was written to in place since it was saved is not handed out: it is recomputed.
- What the plan skips is skipped only as long as forward runs the operators of the plan
  and all that it saves can be handed out; else it is recomputed. Nothing computes with
  what stands in for a result: that is an error (standing_in.py).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import SAC_IGNORED_OPS

from acplan.errors import AcplanError
from acplan.standing_in import (
    Origin,
    Shape,
    StandIn,
    by_shape,
    reshape,
    stand_in,
)
from acplan.tape import (
    RUN,
    SAVE,
    SKIP,
    Call,
    CastKey,
    Choice,
    Saved,
    Skipped,
    Tape,
    Writes,
    memory_of,
    plain_results,
    tensors_of,
    written_by,
)

Decide = Callable[[Any], Choice]


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
        is_plain=not (is_mutable or is_random or is_cast),
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
    tensor = next(iter(tensors_of((args, kwargs))), None)
    device = kwargs.get("device") if tensor is None else tensor.device
    return default_generator(torch.device(device or "cpu"))


def default_generator(device: torch.device) -> torch.Generator | None:
    if device.type == "cpu":
        return torch.default_generator
    of_type = getattr(getattr(torch, device.type, None), "default_generators", ())
    index = device.index or 0
    # On fake tensors there may be no device, and nothing is drawn.
    return of_type[index] if index < len(of_type) else None


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
    ) -> None:
        super().__init__(tape, sharded)
        self._decide = decide
        self._on_end = on_end
        self._saved_in: dict[int | None, list[Saved]] = {}

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
        tape = self._tape
        if self._is_blind or traits.is_ignored:
            out = func(*args, **kwargs)
            # A tensor's device says nothing of what is in it.
            if tape.writes and func is not torch.ops.prim.device.default:
                self._note(tape.writes, traits, (args, kwargs), out, func)
            return out
        choice = self._decide(func)
        if not traits.is_plain or tape.writes:
            return self._run_with_care(func, traits, choice, args, kwargs)
        out = func(*args, **kwargs)
        item = func
        if choice != RUN:
            is_given = traits.is_view and args and out is args[0]
            call = ((args, kwargs),) if is_given else ()
            item = self._left_out(func, choice, out, *call)
        tape.items.append(item)
        return out

    def _left_out(self, func: Any, choice: Choice, out: Any, *call: Any) -> Any:
        """What the tape has of an operator that does not run again."""
        tape = self._tape
        if choice != SAVE:
            if not plain_results(out):
                tape.distrust(f"{func} makes a tensor that nothing can stand in for")
            if not tape.may_skip:
                choice = RUN if choice == SKIP else SAVE
        if choice == RUN:
            return func
        if choice == SKIP:
            return Skipped(func, out, *call)
        if isinstance(choice, tuple):
            saved = Saved.some(func, out, choice, *call)
        else:
            saved = Saved(func, out)
        for tensor in tensors_of(saved.value):
            self._saved_in.setdefault(memory_of(tensor), []).append(saved)
        return saved

    def _run_with_care(
        self,
        func: Any,
        traits: _Traits,
        choice: Choice,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        tape = self._tape
        if traits.is_mutable:
            choice = self._choice_of_write(func, choice, args, kwargs)
        draws = _draws(traits, args, kwargs)
        generator = _generator(args, kwargs) if draws else None
        if generator is not None and generator is not torch.default_generator:
            # PyTorch may restore it when the unit runs again, and may not.
            if generator not in tape.first_states:
                tape.first_states[generator] = generator.get_state()
        out = func(*args, **kwargs)
        item = func
        if choice != RUN:
            is_given = traits.is_mutable or (traits.is_view and out is args[0])
            call = ((args, kwargs),) if is_given else ()
            item = self._left_out(func, choice, out, *call)
        if item is not func and generator is not None:
            item.after = (generator, generator.get_state())
        if tape.writes:
            self._note(tape.writes, traits, (args, kwargs), out, item)
            if tape.may_skip:
                self._note_memory(tape.writes, traits, (args, kwargs), out, item)
        if traits.is_cast and _is_kept_cast(args[0]):
            if item is not func:
                tape.casts[_cast_key(args, kwargs)] = item
        else:
            tape.items.append(item)
        return out

    def _note(
        self, writes: Writes, traits: _Traits, call: Any, out: Any, item: Any
    ) -> None:
        place = len(self._tape.items)
        kind = (traits.is_view, traits.is_mutable)
        writes.note(place, kind, tensors_of(call), out, item)

    def _note_memory(
        self, writes: Writes, traits: _Traits, call: Call, out: Any, item: Any
    ) -> None:
        """What the recomputation needs to know where writes are left out."""
        tape, place = self._tape, len(self._tape.items)
        if type(item) is Skipped and traits.is_mutable:
            item.leaves_stale = writes.leaves_stale(item.func, *call)
            tape.leaves_stale |= item.leaves_stale
            tape.unwritten.update(map(memory_of, written_by(item.func, *call)))
        made = tensors_of(out)
        made_at = writes.made_at(made[0]) if made else place
        if type(item) in (Skipped, Saved):
            tape.made_at[place] = made_at
        if traits.is_view or (made and made_at != place and not traits.is_mutable):
            args = call[0]
            tape.views[place] = (made_at, memory_of(made[0]), tuple(args[1:]))

    def _choice_of_write(
        self, func: Any, choice: Choice, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Choice:
        """It is left out only where what it writes to is then as in forward, or not
        there; else it will run again, on what forward had there before."""
        tape = self._tape
        if choice not in (RUN, SKIP):
            if tape.writes and tape.writes.may_skip(func, args, kwargs):
                tape.skips_writes = True
                return choice
            choice = RUN
        if tape.writes is None:
            if choice == SKIP:
                tape.distrust(f"{func} is skipped, which writes in place unnamed")
            for tensor in written_by(func, args, kwargs):
                for saved in self._saved_in.pop(memory_of(tensor), ()):
                    tape.distrust(f"{func} writes to what the plan saves")
                    saved.drop()
            return choice
        is_skipped = choice == SKIP and tape.may_skip
        if tape.writes.must_forget(func, args, kwargs, is_skipped):
            tape.distrust(f"{func} writes to what the plan saves, or skips")
            tape.drop()
        return choice


def _cast_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CastKey:
    return id(args[0]), kwargs.get("dtype")


class StartAgain(BaseException):
    """A recomputation runs other operators than forward did, and results have been
    skipped that it may need: all of it is to run."""

    def __init__(self, recomputation: "Recomputation") -> None:
        super().__init__()
        self.recomputation = recomputation


def run(
    module: Callable[..., Any], tape: Tape, /, *args: Any, **kwargs: Any
) -> Any:
    """Calls a module, in forward and again. It begins anew at most once."""
    try:
        return module(*args, **kwargs)
    except StartAgain as start:
        # It may be that of a unit around this one.
        if start.recomputation.tape is not tape:
            raise
        start.recomputation.start_again()
    return module(*args, **kwargs)


class HasBuffers(Protocol):
    def buffers(self) -> Iterable[torch.Tensor]: ...


class Recomputation(_Mode):
    """Reads the tape."""

    def __init__(
        self,
        tape: Tape,
        fqn: str,
        module: HasBuffers,
        sharded: Sequence[torch.nn.Module] = (),
    ) -> None:
        super().__init__(tape, sharded)
        self._fqn = fqn
        self._module = module
        self._place = 0
        self._is_lost = False
        self._may_skip = False
        self._has_stale = False
        self._has_skipped = False
        self._has_hooks = False
        self._saves = 0  # of autograd
        self._saves_to_ignore = 0
        self._first_state: torch.Tensor | None = None
        self._states: dict[torch.Generator, torch.Tensor] = {}

    @property
    def tape(self) -> Tape:
        return self._tape

    def __enter__(self) -> "Recomputation":
        self._tape.prepare()
        self._place = self._saves = 0
        self._is_lost = self._has_stale = self._has_skipped = False
        for generator, state in self._tape.first_states.items():
            self._states[generator] = generator.get_state()
            generator.set_state(state)
        self._has_hooks = self._tape.may_skip and self._push_hooks()
        self._may_skip = self._has_hooks
        if self._may_skip:
            self._first_state = torch.default_generator.get_state()
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if self._has_hooks:
            torch._C._autograd._pop_saved_tensors_default_hooks()
        self._first_state = None
        for generator, state in self._states.items():
            generator.set_state(state)
        self._states.clear()

    def start_again(self) -> None:
        """From where forward began, with nothing skipped. Autograd has saved something
        already, which it does not save twice: forward did run what came before."""
        tape = self._tape
        tape.distrust("")
        tape.skips_writes = False
        if any(type(cast) is Skipped for cast in tape.casts.values()):
            torch.clear_autocast_cache()
        for generator, state in tape.first_states.items():
            generator.set_state(state)
        if self._first_state is not None:
            torch.default_generator.set_state(self._first_state)
        self._place = 0
        self._is_lost = self._may_skip = self._has_stale = False
        self._saves_to_ignore, self._saves = self._saves, 0

    def _push_hooks(self) -> bool:
        """Counts what autograd saves, which is given a stand-in in place of memory that
        is not as it was. Of saved-tensor hooks only the last ones are called, so these
        call the checkpoint's. Older versions of PyTorch do not tell them."""
        top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        hooks = top(True) if top else None
        if hooks is None:
            self._tape.distrust("")
            return False
        save, unsave = hooks

        def pack(tensor: torch.Tensor) -> Any:
            if self._saves_to_ignore:
                self._saves_to_ignore -= 1
                return tensor.detach()
            self._saves += 1
            if self._has_stale and (origin := _stale(tensor)):
                tensor = stand_in(Shape(tensor), origin)
            return save(tensor)

        torch._C._autograd._push_saved_tensors_default_hooks(pack, unsave)
        return True

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
            if args and isinstance(args[0], StandIn):
                return _unseen(func, args, kwargs)
            return func(*args, **kwargs)
        if self._is_lost:
            return self._run(func, traits, args, kwargs)
        place = self._place
        if traits.is_cast and _is_kept_cast(args[0]):
            item = self._tape.casts.get(_cast_key(args, kwargs), func)
        else:
            items = self._tape.items
            item = items[place] if place < len(items) else None
            if traits.is_view and isinstance(args[0], StandIn):
                if self._is_made_anew(func, item, args):
                    return by_shape(func, args, kwargs, args[0].origin)
            self._place = place + 1
            if self._tape.unwritten and self._is_of_unwritten(place, args):
                return self._run(func, traits, args, kwargs)
        if item is func:
            return self._run(func, traits, args, kwargs)
        kind = type(item)
        if (kind is not Skipped and kind is not Saved) or item.func is not func:
            self._lose(func)
            return self._run(func, traits, args, kwargs)
        if not (self._may_skip if kind is Skipped else item.has_value):
            return self._run(func, traits, args, kwargs)
        if item.after:
            generator, state = item.after
            generator.set_state(state)
        made_at = self._tape.made_at.get(place, place)
        origin = Origin(self._fqn, place, func, made_at)
        if kind is Saved:
            self._has_skipped |= item.is_partial
            return item.take(origin, (args, kwargs))
        if traits.is_mutable:
            if not self._writes_to_nothing(item, origin, args, kwargs):
                return self._run(func, traits, args, kwargs)
        self._has_skipped = True
        return item.hand_out(origin, (args, kwargs))

    def _is_made_anew(self, func: Any, item: Any, args: tuple[Any, ...]) -> bool:
        """Whether autograd views a stand-in once more: where a view is written to, it
        does so if tensors have a dispatch of their own; forward's have none."""
        if item is not func and getattr(item, "func", None) is not func:
            return True
        of = self._tape.views.get(self._place)
        return of is not None and of[::2] != (args[0].origin.made_at, args[1:])

    def _is_of_unwritten(self, place: int, args: tuple[Any, ...]) -> bool:
        """Whether a view is left out of memory that is there, and of which a view is
        written to. It must be a view as forward's was: autograd looks, and who reads
        that memory must be told that it is not as it was."""
        of = self._tape.views.get(place)
        if of is None or of[1] not in self._tape.unwritten or not args:
            return False
        item = self._tape.items[place]
        is_left_out = type(item) is Skipped or (type(item) is Saved and item.is_partial)
        return is_left_out and not isinstance(args[0], StandIn)

    def _writes_to_nothing(
        self,
        item: Skipped,
        origin: Origin,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:
        """Marks what should have been written to; false where an operator must run that
        writes to a shape."""
        if torch.Tag.inplace_view in origin.func.tags:
            if not isinstance(args[0], StandIn):
                return False
            reshape(origin.func, args, kwargs)
        if item.leaves_stale:
            for tensor in written_by(origin.func, args, kwargs):
                if memory_of(tensor) is None:
                    origin.refuse(origin.func)
                self._has_stale = True
                # It is gone with the memory.
                tensor.untyped_storage().acplan_stale = origin
        return True

    def _run(
        self,
        func: Any,
        traits: _Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if traits.is_view and isinstance(args[0], StandIn):
            return by_shape(func, args, kwargs, args[0].origin)
        if self._has_stale and not traits.is_view:
            for tensor in tensors_of((args, kwargs)):
                if origin := _stale(tensor):
                    origin.refuse(func)
        if traits.writes:
            args = tuple(map(self._spared, args))
            kwargs = {name: self._spared(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _spared(self, value: Any) -> Any:
        """Buffers were written to in forward, and are not again."""
        is_buffer = isinstance(value, torch.Tensor) and any(
            value is buffer for buffer in self._module.buffers()
        )
        # Nothing is written to fake tensors, and the copy would be counted.
        return value.clone() if is_buffer and not is_fake(value) else value

    def _lose(self, func: Any) -> None:
        if self._may_skip and self._has_skipped:
            raise StartAgain(self)
        if self._tape.skips_writes:
            # What has been handed out may hold what is only written now.
            raise AcplanError(
                f"{self._fqn}: operator {self._place - 1} of the recomputation is "
                f"{func}, forward ran another one; a module that writes in place must "
                "run the same operators each time to be planned operator by operator"
            )
        self._is_lost = True


def _unseen(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a stand-in, what no policy sees."""
    given = args[0]
    if func is torch.ops.aten.detach.default:
        return stand_in(Shape(given), given.origin)
    if func is torch.ops.prim.device.default:
        return given.device
    return by_shape(func, args, kwargs, given.origin)


def _stale(tensor: torch.Tensor) -> Origin | None:
    """What should have written to its memory, and was skipped."""
    if memory_of(tensor) is None:
        return None
    origin: Origin | None = tensor.untyped_storage().__dict__.get("acplan_stale")
    return origin
