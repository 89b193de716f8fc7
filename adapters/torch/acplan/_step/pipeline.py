"""A rank of a pipeline: its stages, and the schedule of torch.distributed.pipelining that runs
them.

PyTorch's own schedule runs its own list of actions on the fake process group, so microbatches
in flight, buffers of receives and the scaling of gradients are PyTorch's. The other ranks send
nothing, not even the shapes of what they send: those are the `input_args` of the stages.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from acplan._base.errors import AcplanError
from acplan._base.patching import replaced_here, set_attribute
from acplan._base.tensors import tensors_in

# Returns the schedule of a rank's model, which has its stages, on the mesh, if there is one.
ScheduleFn = Callable[[torch.nn.Module, DeviceMesh | None], Any]

_DEVICE = torch.device("cuda", 0)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The schedule of a rank, and the function that makes it for a model."""

    function: ScheduleFn
    mesh: DeviceMesh | None
    schedule: Any

    @classmethod
    def from_function(
        cls, function: ScheduleFn, model: torch.nn.Module, mesh: DeviceMesh | None
    ) -> "Pipeline":
        schedule = function(model, mesh)
        own = {id(module) for module in model.modules()}
        for stage in _stages_of(schedule):
            if id(stage.submod) not in own:
                raise AcplanError(
                    f"schedule: stage {stage.stage_index}: expected a module of the model, "
                    f"found another {type(stage.submod).__name__}"
                )
            _receive_nothing(stage)
        if not schedule._has_backward:
            raise AcplanError("schedule: expected one with a loss_fn, found one without")
        _require_actions(schedule)
        schedule._warmup_p2p = _warm_up
        return cls(function, mesh, schedule)

    @classmethod
    def from_training(
        cls, training: Any, model: torch.nn.Module, mesh: DeviceMesh | None
    ) -> "Pipeline | None":
        """Returns the pipeline of a training step, or None if it has no schedule."""
        function = training.schedule
        return None if function is None else cls.from_function(function, model, mesh)

    def with_model(self, model: torch.nn.Module) -> "Pipeline":
        """Returns the pipeline of another model, such as the same one with units."""
        return Pipeline.from_function(self.function, model, self.mesh)

    def step(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        end_forward: Callable[[], object] = int,
    ) -> None:
        """Runs all forward and backward passes of a step. `end_forward` is called after the
        last forward pass of this rank."""
        schedule = self.schedule
        plain = schedule._maybe_compute_loss
        remaining = schedule._n_microbatches * len(_stages_of(schedule))

        # Schedules call this after each forward pass.
        def compute_loss(*args: Any, **kwargs: Any) -> None:
            nonlocal remaining
            plain(*args, **kwargs)
            remaining -= 1
            if remaining == 0:
                end_forward()

        with_count = set_attribute(schedule, "_maybe_compute_loss", compute_loss)
        with with_count, _sends_held(), _refusals_told():
            schedule.step(*args, **kwargs)
        if remaining:
            raise AcplanError(
                "schedule: expected a forward pass of each microbatch and stage that calls "
                f"_maybe_compute_loss, found {remaining} without: custom functions do not"
            )

    def buffers(self) -> list[torch.Tensor]:
        """Returns the tensors into which the stages receive."""
        return [*self._buffers()]

    def _buffers(self) -> Iterator[torch.Tensor]:
        for stage in _stages_of(self.schedule):
            for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
                yield from tensors_in([getattr(info, "buffer", None) for info in infos])

    def data(self) -> dict[str, Any]:
        """Returns the trace's entry on the schedule."""
        stages = _stages_of(self.schedule)
        return {
            "schedule": type(self.schedule).__name__,
            "microbatches": self.schedule._n_microbatches,
            "stages": [stage.stage_index for stage in stages],
            "of_stages": stages[0].num_stages,
        }


class _Sending:
    """A send under way, with the tensors that its process group holds until the program
    waits."""

    def __init__(self, work: Any, tensors: list[torch.Tensor]) -> None:
        self._work = work
        self._tensors = tensors

    def wait(self, *args: Any) -> Any:
        self._tensors.clear()
        return self._work.wait(*args)


@contextlib.contextmanager
def _sends_held() -> Iterator[None]:
    """Lets sends hold what they send within the block. The fake process group does not."""
    from torch.distributed.pipelining import schedules

    plain: Any = vars(schedules)["_batch_p2p"]

    def batch(operations: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        works = plain(operations, *args, **kwargs)
        tensors = [one.tensor for one in operations if one.op is dist.isend]
        return [_Sending(work, tensors) for work in works]

    with replaced_here(schedules, "_batch_p2p", batch):
        yield


def _stages_of(schedule: Any) -> Sequence[Any]:
    from torch.distributed.pipelining.schedules import (
        PipelineScheduleMulti,
        PipelineScheduleSingle,
    )

    if isinstance(schedule, PipelineScheduleSingle):
        return [schedule._stage]
    if isinstance(schedule, PipelineScheduleMulti):
        return schedule._stages
    raise AcplanError(
        "schedule: expected a function that returns a schedule of "
        f"torch.distributed.pipelining, found {type(schedule).__name__}"
    )


def _require_actions(schedule: Any) -> None:
    """Refuses a schedule of a user's own actions if they are not those of its stages."""
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    if not isinstance(schedule, _PipelineScheduleRuntime):
        return
    rows = getattr(schedule, "pipeline_order_with_comms", None)
    if rows is None:
        raise AcplanError(
            f"schedule: expected a {type(schedule).__name__} with actions, found none: call "
            "its _load_csv"
        )
    actions = [part for one in rows[schedule.rank] for part in one.sub_actions or (one,)]
    of_actions = sorted({action.stage_index for action in actions})
    of_rank = sorted(stage.stage_index for stage in schedule._stages)
    if of_actions != of_rank:
        raise AcplanError(
            f"schedule: expected actions of the stages of rank {schedule.rank}, {of_rank}, "
            f"found those of {of_actions}"
        )


@contextlib.contextmanager
def _refusals_told() -> Iterator[None]:
    """Raises, for an assertion of PyTorch's schedules on their actions, an error in a line."""
    try:
        yield
    except AssertionError as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        name = None if last is None else last.tb_frame.f_globals.get("__name__")
        if name != "torch.distributed.pipelining.schedules":
            raise
        raise AcplanError(f"schedule: {str(error).splitlines()[0]}") from error


def _warm_up(stages: Sequence[Any], *_: object) -> None:
    """Lets stages find out the shapes of what they receive, without asking other ranks."""
    from torch.distributed.pipelining._utils import InferenceMode

    for stage in stages:
        if hasattr(stage, "_inference_mode"):
            stage._inference_mode = InferenceMode.DYNAMIC


def _receive_nothing(stage: Any) -> None:
    """Lets a stage know the shapes that other ranks would send: those of its `input_args`,
    and for gradients those of its own results."""
    from torch.distributed.pipelining import PipelineStage

    if not hasattr(PipelineStage, "_recv_meta"):
        raise AcplanError(
            "schedule: expected PyTorch 2.13 or later, whose pipelines are traced"
        )
    stage.device = _DEVICE
    if isinstance(stage, PipelineStage):
        own: Any = stage
        own._recv_meta = lambda source: _shapes_from(stage, source)
        own._send_meta = lambda *_: None


def _shapes_from(stage: Any, source: int) -> Any:
    from torch.distributed.pipelining._utils import (
        InferenceMode,
        _derive_grad_metas,
        _StageBackwardMeta,
        _StageForwardMeta,
    )

    examples = stage._user_meta
    if source > stage.stage_index:
        grads = examples.output_grads or _derive_grad_metas(stage._stage_meta.outputs)
        return _StageBackwardMeta(grads)
    if examples.inputs is None:
        raise AcplanError(
            f"schedule: stage {stage.stage_index}: expected input_args in PipelineStage, found "
            f"none: stage {source}, of another rank, sends no shapes to a trace"
        )
    if not InferenceMode.needs_dynamic(examples, stage.has_backward):
        return _StageForwardMeta(examples.inputs)
    # In training, the shapes then are those of the results of the stage before.
    return _StageForwardMeta(
        tuple(
            dataclasses.replace(meta, requires_grad=meta.dtype.is_floating_point)
            for meta in examples.inputs
        )
    )


def require_alone(training: Any) -> None:
    """Refuses options that a schedule has in itself."""
    if training.schedule is None:
        return
    for name in ("loss_fn", "forward_fn"):
        if getattr(training, name) is not None:
            raise AcplanError(
                f"{name}: cannot be combined with schedule, which has a loss_fn of its own"
            )
    if training.accumulate != 1 or training.grad_scaler:
        name = "accumulate" if training.accumulate != 1 else "grad_scaler"
        raise AcplanError(
            f"{name}: cannot be combined with schedule, which runs all backward passes"
        )
