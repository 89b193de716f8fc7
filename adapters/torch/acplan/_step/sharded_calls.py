"""Calls of modules under fully_shard: their hooks gather parameters and free them.

A unit around such a module would find the parameters freed when it runs again, and is refused.
If a module under fully_shard is inside another one, as experts are in a layer that torchtitan
shards, units between the two are possible. When one of them runs again, the inner module
gathers its parameters if they are not gathered yet (_base/sharded_modules.py, gather_again),
and the hook of its gradient, which comes later, finds them there. So what the hooks run in
forward is no part of what runs again, and what gathers in the backward pass runs early.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from acplan._base.modules import FSDPModule
from acplan._base.patching import set_attribute
from acplan._base.sharded_modules import groups_of, hooks_replaced, state_of
from acplan._base.tensors import tensors_in
from acplan._step.step_log import StepLog

RecordCall = Callable[..., Any]


class ShardedCalls:
    """The part of a log that records the calls of sharded modules."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        # The open calls of sharded modules, the innermost last, except those of the root.
        self._open: list[int] = []
        # Indexed by module: its calls in forward, and the calls around each that may be units.
        self._calls: dict[int, list[tuple[int, list[int]]]] = {}

    @contextlib.contextmanager
    def watched(
        self, index: int, module: FSDPModule, record_call: RecordCall
    ) -> Iterator[None]:
        """Records, within the block, the calls of a module by `record_call`, without the hooks
        of fully_shard."""
        of_torch: Any = module
        plain = of_torch._call_impl
        # The arguments that other hooks make, which the call holds until its last hook ends.
        arguments_held: list[Any] = []

        def hold(_: Any, args: Any, kwargs: Any) -> None:
            arguments_held.append((args, kwargs))

        with contextlib.ExitStack() as undo:
            handle = of_torch.register_forward_pre_hook(hold, with_kwargs=True)
            undo.callback(handle.remove)
            before, after = undo.enter_context(
                hooks_replaced(
                    module,
                    lambda hook: lambda module, args, kwargs: (args, kwargs),
                    lambda hook: lambda module, args, output: output,
                )
            )

            def call(*args: Any, **kwargs: Any) -> Any:
                if not self._log.is_forward:
                    args, kwargs = before(module, args, kwargs)
                    output = after(module, args, plain(*args, **kwargs))
                    arguments_held.pop()
                    return output
                outer_calls = self._units_around(module)
                self._refuse([c for c in self._log.open_calls if c not in outer_calls])
                args, kwargs = self._gather(module, before, args, kwargs, outer_calls)
                number = len(self._log.calls)
                open_before = [*self._open]
                if not state_of(module)._is_root:
                    self._open.append(number)
                try:
                    output = record_call(index, module, plain, *args, **kwargs)
                finally:
                    self._open = open_before
                self._add(index, number, outer_calls)
                output = self._free(module, after, args, output, outer_calls)
                arguments_held.pop()
                return output

            undo.enter_context(set_attribute(module, "_call_impl", call, create=True))
            yield

    @contextlib.contextmanager
    def gathering_watched(self, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
        """Notes, within the block, which operators of the backward pass gather the parameters
        of these modules."""
        with contextlib.ExitStack() as undo:
            for index, module in enumerate(modules):
                if isinstance(module, FSDPModule):
                    for group in groups_of(module):
                        undo.enter_context(self._group_watched(index, group))
            yield

    def refuse_open_calls(self) -> None:
        """Excludes all open calls from being units."""
        self._refuse(self._log.open_calls)

    def _refuse(self, calls: list[int]) -> None:
        for number in calls:
            self._log.calls[number].no_grad = True

    def _units_around(self, module: FSDPModule) -> list[int]:
        """Returns the open calls that may be units although they are around this module: those
        within another sharded module that is not the root, with that one."""
        if not self._open or len(groups_of(module)) != 1:
            return []
        return [c for c in self._log.open_calls if c >= self._open[-1]]

    def _gather(
        self, module: Any, hook: Any, args: Any, kwargs: Any, outer_calls: list[int]
    ) -> tuple[Any, Any]:
        """Runs the hook before forward. Returns the arguments of forward."""
        log = self._log
        if not outer_calls:
            result: tuple[Any, Any] = hook(module, args, kwargs)
            return result
        storages = log.storages_of([*tensors_in(args), *tensors_in(kwargs)])
        with log.runs_once(storages):
            args, kwargs = hook(module, args, kwargs)
        # The hook has cast arguments, which must happen again.
        if log.storages_of([*tensors_in(args), *tensors_in(kwargs)]) != storages:
            self._refuse(outer_calls)
        return args, kwargs

    def _free(
        self, module: Any, hook: Any, args: Any, output: Any, outer_calls: list[int]
    ) -> Any:
        """Runs the hook after forward. Returns the module's results."""
        log = self._log
        if not outer_calls:
            return hook(module, args, output)
        begin = log.now
        with log.runs_once(log.storages_of(tensors_in(output))):
            output = hook(module, args, output)
        # A hook that computes, such as one that casts results, must do so again.
        if not all(o.name.startswith("profiler.") for o in log.operators[begin:]):
            self._refuse(outer_calls)
        return output

    def _add(self, index: int, number: int, outer_calls: list[int]) -> None:
        calls = self._calls.setdefault(index, [])
        calls.append((number, outer_calls))
        # The call whose parameters are gathered in backward is not known.
        if len(calls) > 1:
            for place, units in calls:
                self._refuse(units)
                call = self._log.calls[place]
                call.gather_begin = call.gather_end = None

    @contextlib.contextmanager
    def _group_watched(self, index: int, group: Any) -> Iterator[None]:
        """Notes, within the block, the operators that gather a group's parameters, without
        what is gathered ahead for other groups."""
        log, plain = self._log, (group.pre_backward, group.unshard, group._backward_prefetch)
        # The times before the group's own all-gather, and before what is gathered ahead.
        times: list[int] = []

        def pre_backward(*args: Any, **kwargs: Any) -> None:
            times.clear()
            plain[0](*args, **kwargs)
            # Passes of a pipeline before the last forward do not count, nor in module_calls.py.
            if not times or log.is_forward:
                return
            begin, end = times[0], times[1] if len(times) > 1 else log.now
            calls = self._calls.get(index, [])
            if len(calls) != 1:
                return
            call = log.calls[calls[0][0]]
            if end > begin and call.gather_begin is None:
                call.gather_begin, call.gather_end = begin, end

        def unshard(*args: Any, **kwargs: Any) -> None:
            times.append(log.now)
            plain[1](*args, **kwargs)

        def prefetch() -> None:
            times.append(log.now)
            plain[2]()

        own = {
            "pre_backward": pre_backward, "unshard": unshard, "_backward_prefetch": prefetch,
        }  # fmt: skip
        with contextlib.ExitStack() as undo:
            for name, method in own.items():
                undo.enter_context(set_attribute(group, name, method, create=True))
            yield
