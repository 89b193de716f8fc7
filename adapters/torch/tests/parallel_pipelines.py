"""Small pipelines: their stages, and the schedules that run them."""

import dataclasses
import math
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _PipelineScheduleRuntime,
    get_schedule_class,
)
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    PrepareModuleInput,
    PrepareModuleOutput,
    parallelize_module,
)

from parallel_actions import actions_in_v, csv_text, with_early_receives
from parallel_models import WIDTH, Block, Case, tensor_parallel

# The schedule of a user's own actions.
OWN = "_PipelineScheduleRuntime"
IN_V = ("ZBVZeroBubble", "DualPipeV", OWN)
# Their backward passes come in two parts.
IN_PARTS = ("InterleavedZeroBubble", *IN_V)
_BATCH = 2


class Stage(nn.Module):
    """A part of a model: blocks, after the embedding if it is the first one, and before the
    head if it is the last one."""

    def __init__(self, index: int, count: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH) if index == 0 else nn.Identity()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        is_last = index == count - 1
        self.head = nn.Linear(WIDTH, vocabulary, bias=False) if is_last else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def mean_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


@dataclasses.dataclass(frozen=True)
class PipelineCase(Case):
    """A schedule of torch.distributed.pipelining, by its name, on the dimension "pp"."""

    schedule: str = ""
    microbatches: int = 4
    # The format of a file of the user's actions: "compute_only" or "compute_comms".
    actions: str = ""
    # Stages send parts of DTensors.
    dtensors: bool = False

    @property
    def schedule_class(self) -> Any:
        if self.actions:
            return _PipelineScheduleRuntime
        return get_schedule_class(self.schedule)

    @property
    def stage_count(self) -> int:
        return self.mesh["pp"] * (
            2 if issubclass(self.schedule_class, PipelineScheduleMulti) else 1
        )

    def stages_of(self, rank: int) -> Sequence[int]:
        """Returns the stages of a rank of "pp"."""
        ranks, count = self.mesh["pp"], self.stage_count
        if count == ranks:
            return [rank]
        return [rank, count - 1 - rank if self.schedule in IN_V else rank + ranks]

    def make_stages(self, rank: int) -> nn.Module:
        count = self.stage_count
        return nn.ModuleList(Stage(k, count, self.vocabulary) for k in self.stages_of(rank))

    def inputs(self, rank: int, tokens: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of a rank's `step`."""
        stages = self.stages_of(rank)
        args = (tokens,) if 0 in stages else ()
        return args, {"target": tokens} if self.stage_count - 1 in stages else {}

    def make_on_meta_of(self, rank: int) -> nn.Module:
        with torch.device("meta"):
            return self.make_stages(rank)

    def options_of(self, number: int) -> dict[str, Any]:
        """Returns the options of the trace of a rank of the mesh."""
        return {
            "mesh": self.mesh,
            "parallelize": self.functions,
            "rank": number,
            "schedule": self.schedule_on,
        }

    def place_of(self, number: int) -> int:
        """Returns the place in "pp", the outermost dimension, of a rank of the mesh."""
        return number * self.mesh["pp"] // math.prod(self.mesh.values())

    @property
    def ranks_of_stage(self) -> int:
        return math.prod(self.mesh.values()) // self.mesh["pp"]

    def schedule_on(self, model: nn.Module, mesh: Any) -> Any:
        """Returns the schedule of a rank's stages."""
        pp = mesh["pp"]
        device = torch.device(mesh.device_type)
        # Between stages under tensor parallelism, sequences are split.
        boundary = torch.empty(
            (_BATCH, self.length // self.mesh.get("tp", 1), WIDTH), device="meta"
        )
        if self.dtensors:
            boundary = DTensor.from_local(boundary, mesh["tp"], [Shard(1)], run_check=False)
        count = self.stage_count
        stages = [
            PipelineStage(
                part,
                index,
                count,
                device,
                input_args=boundary if index else None,
                output_grads=boundary if self.dtensors and index < count - 1 else None,
                group=pp.get_group(),
            )
            for part, index in zip(model, self.stages_of(pp.get_local_rank()), strict=True)
        ]
        is_one = self.stage_count == self.mesh["pp"]
        schedule = self.schedule_class(
            stages[0] if is_one else stages, self.microbatches, loss_fn=mean_loss
        )
        if self.actions:
            self._load_actions(schedule)
        return schedule

    def _load_actions(self, schedule: Any) -> None:
        actions = actions_in_v(self.mesh["pp"], self.microbatches)
        if self.actions == "compute_comms":
            actions = with_early_receives(actions, self.microbatches)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "actions.csv")
            path.write_text(csv_text(actions))
            schedule._load_csv(str(path), format=self.actions)

    def tokens_of(self, number: int) -> torch.Tensor:
        numbers = torch.Generator().manual_seed(number)
        shape = (_BATCH * self.microbatches, self.length)
        return torch.randint(0, self.vocabulary, shape, generator=numbers)


SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)


def sharded_stages(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shards every block of the stages, and the rest of each stage, on "dp"."""
    for stage in model.children():
        for module in (*stage.get_submodule("blocks").children(), stage):
            fully_shard(module, mesh=mesh["dp"])


def nested_shards(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shards the MLP of every block by itself, as experts are, then the same as above."""
    for stage in model.children():
        for block in stage.get_submodule("blocks").children():
            fully_shard(block.get_submodule("mlp"), mesh=mesh["dp"])
    sharded_stages(model, mesh)


def split_stages(model: nn.Module, mesh: DeviceMesh) -> None:
    """Splits the products of the stages, and the sequence between them, over "tp"."""
    for stage in model.children():
        tensor_parallel()(stage, mesh)


def stages_of_dtensors(model: nn.Module, mesh: DeviceMesh) -> None:
    """Splits stages as split_stages does, with DTensors between them, as torchtitan does."""
    split_stages(model, mesh)
    tp, part = mesh["tp"], Shard(1)
    argument = PrepareModuleInput(
        input_layouts=(part,), desired_input_layouts=(part,), use_local_output=True
    )
    result = PrepareModuleOutput(
        output_layouts=(part,), desired_output_layouts=(part,), use_local_output=False
    )
    for stage in model.children():
        if isinstance(stage.embedding, nn.Identity):
            parallelize_module(stage, tp, argument)
        if isinstance(stage.head, nn.Identity):
            parallelize_module(stage, tp, result)


def pipeline_cases(world_size: int) -> list[PipelineCase]:
    """Returns the cases for so many processes."""
    cases = [
        PipelineCase(
            name,
            {"pp": world_size},
            [],
            schedule=name,
            microbatches=2 * world_size if name == "DualPipeV" else 4,
        )
        for name in SCHEDULES
    ]
    cases += [
        PipelineCase(name, {"pp": world_size}, [], schedule=OWN, actions=form)
        for name, form in (("CSV", "compute_only"), ("CSV with sends", "compute_comms"))
    ]
    if world_size > 2:
        dp, tp = ({"pp": 2, name: world_size // 2} for name in ("dp", "tp"))
        names = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")
        cases += [
            PipelineCase(f"{name} x {kind}", mesh, [function], schedule=name)
            for kind, mesh, function in (("fsdp", dp, sharded_stages), ("tp", tp, split_stages))
            for name in names
        ]
        cases.append(PipelineCase("1F1B x nested fsdp", dp, [nested_shards], schedule="1F1B"))
        cases += [
            PipelineCase(
                f"{name} x tp, DTensors", tp, [stages_of_dtensors], schedule=name, dtensors=True
            )
            for name in ("1F1B", "Interleaved1F1B")
        ]
    return cases
