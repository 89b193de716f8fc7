"""The calls of modules in a step: their beginnings and ends, arguments and results, and when
gradients pass them."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from acplan._base import transforms
from acplan._base.call_arguments import tensors_given
from acplan._base.modules import FSDPModule, borrows_parameters
from acplan._base.patching import replaced_here
from acplan._base.tensors import tensors_in
from acplan._base.torchscript import has_unknown_state, is_scripted
from acplan._step.records import Call
from acplan._step.sharded_calls import ShardedCalls
from acplan._step.step_log import StepLog

# The method that `__call__` of a module calls.
_CALL = "_call_impl"


class ModuleCalls:
    """The part of a log that records which modules are called. Calls in the backward pass are
    not recorded."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._sharded = ShardedCalls(log)
        # Modules that torch.jit has compiled, or that contain such code which may not run
        # again.
        self._scripted: set[int] = set()
        self._gradient_hooks: list[torch.utils.hooks.RemovableHandle] = []

    @contextlib.contextmanager
    def watched(
        self, modules: Iterable[torch.nn.Module], but_root: bool = False
    ) -> Iterator[None]:
        """Records, within the block, calls of these modules, by their place, with everything
        that their hooks run, as a unit calls them."""
        places: dict[int, int] = {}

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            place = places.get(id(module))
            if place is None:
                return plain(module, *args, **kwargs)
            of_module = functools.partial(plain, module)
            return self._call(place, module, of_module, *args, **kwargs)

        # The method is replaced in the class: copies of a module, which libraries make of its
        # attributes, are not the module. But a module with a method of its own calls that one.
        plain: Any = torch.nn.Module._call_impl
        with contextlib.ExitStack() as undo:
            for index, module in enumerate(modules):
                if but_root and index == 0:
                    continue
                if is_scripted(module) or has_unknown_state(module):
                    self._scripted.add(index)
                if isinstance(module, FSDPModule):
                    undo.enter_context(self._sharded.watched(index, module, self._call))
                    continue
                if _CALL not in vars(module) and type(module)._call_impl is plain:
                    places[id(module)] = index
                    continue
                undo.enter_context(_method_replaced(module, _CALL, self._call, index))
            undo.enter_context(replaced_here(torch.nn.Module, _CALL, call))
            undo.enter_context(transforms.without_hooks(self._sharded.refuse_open_calls))
            yield

    def gathering_watched(
        self, modules: Iterable[torch.nn.Module]
    ) -> contextlib.AbstractContextManager[None]:
        """Records, within the block, when modules gather parameters in the backward pass."""
        return self._sharded.gathering_watched(modules)

    @contextlib.contextmanager
    def root_called(self) -> Iterator[None]:
        """Records the block as one call of the first module, which is then no unit."""
        log = self._log
        call = Call(0, -1, log.now, log.now, [], [], [], [], no_grad=True)
        log.open_calls.append(len(log.calls))
        log.calls.append(call)
        yield
        log.open_calls.pop()
        call.end = call.backward_start = log.now

    def ignore_gradients(self) -> None:
        """Ends the recording of when gradients pass calls."""
        for hook in self._gradient_hooks:
            hook.remove()
        self._gradient_hooks.clear()

    def _call(
        self,
        index: int,
        module: torch.nn.Module,
        call_module: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        log = self._log
        if not log.is_forward:
            return call_module(*args, **kwargs)
        is_alone = transforms.are_under_way()
        tensors = tensors_given(args, kwargs)
        call = Call(
            module=index,
            parent=log.open_call,
            start=log.now,
            end=log.now,
            inputs=log.storages_of(tensors),
            arguments=self._arguments(args),
            further_inputs=self._further_inputs(args, tensors),
            outputs=[],
            no_grad=is_alone or index in self._scripted or not torch.is_grad_enabled(),
        )
        if borrows_parameters(module):
            log.inner_passes.borrows(len(log.calls))
        log.open_calls.append(len(log.calls))
        log.calls.append(call)

        def on_input_gradient(_: torch.Tensor) -> None:
            if not log.is_forward:
                call.backward_end = log.now

        def on_output_gradient(_: torch.Tensor) -> None:
            if call.backward_start is None and not log.is_forward:
                call.backward_start = log.now

        if not is_alone:
            self._watch_gradients(tensors, on_input_gradient)
        # The tensors live no longer than without this reference.
        before = [*map(weakref.ref, tensors)]
        del tensors
        try:
            out = call_module(*args, **kwargs)
        except BaseException:
            self._give_up(call)
            raise
        finally:
            log.open_calls.pop()
            call.end = log.now
        results = _results(out, args, kwargs, before)
        call.outputs = log.storages_of(results)
        if not is_alone:
            self._watch_gradients(results, on_output_gradient)
        return out

    def _give_up(self, call: Call) -> None:
        """Removes a call that an exception ends, and calls within it, if they ran nothing and
        saved nothing. Other calls have no results, and are no units."""
        log = self._log
        first = log.open_calls[-1]
        if call.start == log.now and not any(s.call >= first for s in log.saved):
            del log.calls[first:]

    def _arguments(self, args: tuple[Any, ...]) -> list[int]:
        tensors = [a for a in args if issubclass(type(a), torch.Tensor)]
        return [self._log.tensor_of(part) for part in self._log.plain(tensors)]

    def _further_inputs(
        self, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]
    ) -> list[int]:
        """Returns the storages of `tensors`, which a call is given, in order, that none by
        position has."""
        log = self._log
        by_position = [a for a in args if issubclass(type(a), torch.Tensor)]
        ids = {*map(id, by_position)}
        others = [tensor for tensor in tensors if id(tensor) not in ids]
        if not others:
            return []
        own_storages = {*log.storages_of(by_position)}
        storages = [log.storage_of(part) for part in log.plain(others)]
        return [s for s in dict.fromkeys(storages) if s not in own_storages]

    def _watch_gradients(self, values: Any, action: Callable[[torch.Tensor], None]) -> None:
        # The hooks are of single tensors: hooks of several keep gradients alive.
        for tensor in tensors_in(values):
            if tensor.requires_grad:
                self._gradient_hooks.append(tensor.register_hook(action))


@contextlib.contextmanager
def _method_replaced(
    module: torch.nn.Module, name: str, watched: Callable[..., Any], index: int
) -> Iterator[None]:
    """Watches, within the block, the method of this name that the module or its class has."""
    own = vars(module)
    before = own.get(name)
    own[name] = functools.partial(watched, index, module, getattr(module, name))
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            own[name] = before


def _results(
    out: Any, args: Any, kwargs: Any, before: list[weakref.ref[torch.Tensor]]
) -> list[torch.Tensor]:
    """Returns the tensors that a call returned, or has put into its arguments."""
    ids_before = {id(tensor()) for tensor in before}
    new_tensors = [t for t in tensors_given(args, kwargs) if id(t) not in ids_before]
    results = {
        id(tensor): tensor for tensor in [*tensors_given(out), *tensors_in(out), *new_tensors]
    }
    return [*results.values()]
