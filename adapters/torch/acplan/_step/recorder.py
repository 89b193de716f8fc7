"""The recorder of a training step: a mode that logs each operator."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from acplan._base.composed import COMPOSED, run_parts
from acplan._base.operators import (
    OF_WAITING,
    device_asked,
    draws,
    is_kept_cast,
    is_of_nothing,
    statistics_of,
    traits_of,
    written_by,
)
from acplan._base.passes import current_pass
from acplan._base.patching import replaced_here
from acplan._base.process_groups import is_collective
from acplan._base.ring_attention import ring_attention, run_ring, watch_ring_attention
from acplan._base.sharding import watch_propagation
from acplan._base.source_lines import SourceLines
from acplan._base.stand_ins import is_run_inside
from acplan._base.tensors import block_bytes, tensors_of
from acplan._base.triton_kernels import is_launch
from acplan._device.devices import Device, OperatorRun, time_of
from acplan._device.host_copy_times import blocks_host
from acplan._device.stream_waits import StreamWaits, open_waits
from acplan._device.workspaces import is_product, persistent_bytes, workspace_bytes
from acplan._fakes.value_readers import readers
from acplan._files.trace_file import live_bytes
from acplan._step.operator_streams import add_operator, wait_for_results
from acplan._step.records import Operator, Storage
from acplan._step.step_log import StepLog

# Bookkeeping that no checkpointing policy sees (torch.utils.checkpoint), and whose number
# differs between a forward pass and its recomputation.
_INVISIBLE = frozenset({"aten.detach.default", "prim.device.default"})


class Recorder(TorchDispatchMode):
    """A mode that logs all operators that run in `log`. ModuleCalls and the hooks of
    saved_tensors add calls and saved tensors to the log.

    `device` gives operators their run-times; without one they have none. `on_operator` is
    called after each. With `forgets_casts`, autocast keeps no casts, so that every use of a
    weight casts it. The memory that the device `kernels`, if any, allocates beside results
    lives while the operator runs.
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
        self.log = StepLog()
        self._waits = StreamWaits()
        self._device = device
        self._forgets_casts = forgets_casts
        self._kernels = kernels
        self._sources = sources
        self._on_operator = on_operator
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "Recorder":
        watch_propagation()
        watch_ring_attention()
        readers.append(self._note_read)
        open_waits.append(self._waits)
        self._undo.enter_context(resizes_noted(self.log))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        readers.remove(self._note_read)
        open_waits.remove(self._waits)
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._undo.close()

    def _note_read(self, tensor: torch.Tensor) -> None:
        log = self.log
        storage = log.storage_of(tensor)
        if log.is_forward and storage not in log.read_on_host:
            log.read_on_host.append(storage)

    def looking_away(self) -> contextlib.AbstractContextManager[None]:
        """Ignores operators within the block."""
        return self.log.quiet()

    @property
    def counts_workspaces(self) -> bool:
        return self._kernels is not None

    def add_persistent_workspace(self, forward_end: int, backward_end: int) -> None:
        """Adds the memory that libraries of kernels keep, as if it had been there before the
        step: of the program's thread, and of autograd's, if products run there."""
        if self._kernels is None:
            return
        threads = {
            forward_end <= k < backward_end
            for k, operator in enumerate(self.log.operators)
            if is_product(operator.name)
        }
        if threads:
            size = persistent_bytes(self._kernels, len(threads))
            self.log.storages.append(Storage(size, -1, True, None, "buffer"))

    def on_fetch(self, tensor: torch.Tensor) -> None:
        """Logs a copy that comes from the host into its memory, beside the operators that
        run."""
        self.log.storage_of(tensor, self.log.now)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if (of_tensor := device_asked(func, args)) is not None:
            return of_tensor
        if any(map(is_run_inside, types)):
            return NotImplemented
        kwargs = kwargs or {}
        is_unseen = self.log.is_quiet or is_of_nothing(func, args)
        if not is_unseen and func is ring_attention():
            return self._run_inside(func, args, kwargs, lambda: run_ring(*args, **kwargs), True)
        if not is_unseen and func in COMPOSED:
            run = functools.partial(run_parts, func, args, kwargs)
            return self._run_inside(func, args, kwargs, run, self.counts_workspaces)
        out = func(*args, **kwargs)
        if not is_unseen:
            self._record(func, args, kwargs, out)
        return out

    def _run_inside(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
        counts_memory: bool,
    ) -> Any:
        """Runs an operator by others, and records it with the time of all that runs in it; if
        `counts_memory`, with the most memory that is in use meanwhile."""
        inner = Recorder(self._device, kernels=self._kernels)
        with inner:
            out = run()
        storages = [s for s in inner.log.storages if s.born >= 0 and s.on_device]
        lives = live_bytes([(s.born, s.freed, s.bytes) for s in storages], inner.log.now)
        results = {t.untyped_storage() for t in tensors_of(out) if t.device.type == "cuda"}
        result_bytes = sum(block_bytes(result.nbytes()) for result in results)
        if counts_memory:
            self._add_workspace(max(lives, default=0) - result_bytes)
        self._record(func, args, kwargs, out)
        is_measured = self._device is not None and self._device.time_errors is None
        if func not in COMPOSED or not is_measured:
            self.log.operators[-1].runtime_ms = sum(o.runtime_ms for o in inner.log.operators)
        return out

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        log, name = self.log, str(func)
        if log.is_forward and current_pass() >= 0:
            log.inner_passes.runs(log.open_calls)
        read_tensors, results = log.plain(tensors_of(args, kwargs)), tensors_of(out)
        written_tensors = log.plain(results)
        if name in _INVISIBLE or func in OF_WAITING:
            log.add_results(read_tensors, written_tensors)
            wait_for_results(self._waits, func, log.storages_of(read_tensors))
            return
        reads = sorted({log.storage_of(t) for t in read_tensors})
        outputs = sorted({log.storage_of(t, log.now) for t in written_tensors})
        tensors = log.add_results(read_tensors, written_tensors)
        mutates = log.plain(written_by(func, args, kwargs))
        is_view = bool(written_tensors) and not mutates and set(outputs) <= set(reads)
        is_opaque = written_tensors is not results
        if is_opaque:
            outputs, tensors, is_view = [], [], False
        if self._kernels is not None:
            self._add_workspace(workspace_bytes(func, args, kwargs, out, self._kernels))
        if is_launch(func):
            read_tensors, written_tensors = log.plain(args[1]), mutates
        is_mere_view = is_view and not is_collective(func)
        run = OperatorRun(func, args, kwargs, out)
        own_reads, filled = [] if is_mere_view else reads, [*outputs, *log.storages_of(mutates)]
        stream, waits = add_operator(self._waits, run, own_reads, filled)
        if is_once := log.once is not None:
            reads, outputs = [], _unused_again(log, reads, outputs)
        is_cast = _is_kept_cast(name, read_tensors, written_tensors)
        # Lists that an operator changes in place are no results.
        changed = written_tensors or mutates
        is_free = is_mere_view or not changed or "empty" in name
        on_host = log.has_host_parameters and not is_free
        if on_host and blocks_host(func, kwargs, read_tensors, changed):
            self._waits.wait_on_host(self._waits.mark(stream))
        log.operators.append(
            Operator(
                name=name,
                call=log.open_call,
                runtime_ms=0.0
                if is_free or self._device is None
                else time_of(self._device, run, read_tensors, changed, on_host),
                reads=reads,
                outputs=outputs,
                results=tensors,
                mutates=[] if is_once else log.changed_storages(mutates),
                is_view=is_view and not is_once,
                is_random=_is_random(func, args, kwargs),
                is_opaque=is_opaque,
                cast_of=reads[0] if log.is_forward and is_cast else None,
                source=-1 if self._sources is None else self._sources.of_operator(),
                statistics=log.storages_of(statistics_of(func, args, kwargs)),
                is_once=is_once,
                stream=stream,
                waits=waits,
            )
        )
        self._end(name)

    def _end(self, name: str) -> None:
        if self._on_operator:
            self._on_operator()
        # Not while autocast is casting, which holds its lock.
        if self._forgets_casts and name != "aten._to_copy.default":
            torch.clear_autocast_cache()

    def _add_workspace(self, size: int) -> None:
        """Adds memory that lives while the current operator runs."""
        if size > 0:
            now = self.log.now
            self.log.storages.append(Storage(size, now, True, now + 1, "temporary"))


def _unused_again(log: StepLog, reads: list[int], outputs: list[int]) -> list[int]:
    """Returns, for an operator that runs once, a storage that nothing that runs again reads as
    its result."""
    assert log.once is not None
    own = [s for s in outputs if log.storages[s].born == log.now]
    for storage in (*own, *reads, *outputs):
        if storage not in log.once and not log.storages[storage].is_refilled:
            return [storage]
    return log.operators[-1].outputs


def _is_random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    is_tagged = torch.Tag.nondeterministic_seeded in func.tags
    return is_tagged and draws(traits_of(func), args, kwargs)


def _is_kept_cast(
    name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> bool:
    return (
        name == "aten._to_copy.default"
        and is_kept_cast(inputs[0])
        and outputs[0].dtype in (torch.bfloat16, torch.float16)
    )


@contextlib.contextmanager
def resizes_noted(log: StepLog) -> Iterator[None]:
    """Lets the log know, within the block, when the program resizes a storage."""
    plain = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        bytes_before = storage.nbytes()
        result = plain(storage, size)
        if not log.is_quiet and storage.nbytes() != bytes_before:
            log.resized(storage, bytes_before)
        return result

    with replaced_here(torch.UntypedStorage, "resize_", resize_):
        yield
