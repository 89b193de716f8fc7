"""torchtitan with parallelism beyond data: its own trainer if it is installed, and the step
that acplan makes of a configuration, with stand-ins for torchtitan's functions."""

import contextlib
import functools
import os
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import acplan.torchtitan
from acplan._step.parallel import Parallel
from acplan._trainers.plan_part import part_of
from acplan._trainers.titan_pipeline import TitanPipeline
from acplan._trainers.titan_step import TitanStep, is_sharded
from parallel_models import Net, loss_of, sharded, tensor_parallel
from parallel_pipelines import PipelineCase


def _stand_in(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(f"torchtitan.{name}")
    vars(module).update(attributes)
    return module


class _Dims:
    @classmethod
    def from_config(cls, parallelism: Any, world_size: int) -> "_Dims":
        assert (parallelism.tensor_parallel_degree, world_size) == (2, 4)
        return cls()

    def build_mesh(self) -> None:
        self._mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def get_mesh(self) -> Any:
        return self._mesh


def _parallelize(model: nn.Module, *, parallel_dims: Any, **options: Any) -> nn.Module:
    assert options["ac_config"] is None and not options["compile_config"].enable
    mesh = parallel_dims.get_mesh()
    tensor_parallel()(model, mesh)
    sharded("dp")(model, mesh)
    return model


def test_the_step_is_the_one_that_torchtitan_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(output: torch.Tensor, labels: torch.Tensor, count: float) -> Any:
        return loss_of(lambda _: output, labels), {}  # type: ignore[arg-type]  # no module

    modules = {
        "config": {"TORCH_DTYPE_MAP": {"float32": torch.float32}},
        "tools.utils": {"set_default_dtype": lambda dtype: contextlib.nullcontext()},
        "distributed.parallel_dims": {"ParallelDims": _Dims},
        "components.loss": {"ChunkedLossWrapper": nn.Linear},
    }
    for name, attributes in modules.items():
        monkeypatch.setitem(sys.modules, f"torchtitan.{name}", _stand_in(name, **attributes))
    part = types.SimpleNamespace
    config = part(
        training=part(dtype="float32"),
        parallelism=part(tensor_parallel_degree=2),
        compile=part(enable=True),
        loss=part(build=lambda compile_config: loss),
        model_spec=part(model=part(build=lambda: Net(52, False)), parallelize_fn=_parallelize),
    )
    assert is_sharded(config.parallelism)
    step = TitanStep(config)
    tokens = torch.zeros(4, 16, dtype=torch.long)
    trace = acplan.trace(
        step.make, tokens, tokens, mesh={"world": 4}, parallelize=step.shard,
        forward_fn=step.loss_of(), optimizer="adamw", workspaces=False,
    )  # fmt: skip
    expected = acplan.trace(
        step.make, tokens, mesh={"dp": 2, "tp": 2}, forward_fn=loss_of, optimizer="adamw",
        parallelize=[tensor_parallel(), sharded("dp")], workspaces=False,
    )  # fmt: skip
    names, expected_names = (
        [operator["name"] for operator in one.data["operators"]] for one in (trace, expected)
    )
    assert names == expected_names
    assert config.compile.enable


class _Counting(nn.Module):
    """A block that counts its tokens as a mixture of experts does."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.register_buffer("tokens", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.tokens.add_((x > 0).sum(0))
        return self.up(x).sigmoid()


def test_a_block_counts_its_tokens_once_and_torchtitan_does_not_halve_them() -> None:
    model = acplan.apply(
        nn.Sequential(_Counting()), acplan.Plan((acplan.PlannedModule("Sequential.0"),))
    )
    x = torch.randn(4, 8, requires_grad=True)
    model(x).sum().backward()
    block: Any = model[0]
    assert torch.equal(block.tokens, (x > 0).sum(0).float())
    # torchtitan's hook of the optimizer asks for this attribute.
    assert getattr(block, "checkpoint_impl", None) is None


@pytest.mark.parametrize(
    ("degrees", "batch", "message"),
    [
        ({}, 8, "global_batch_size: expected 2 with pipelines, found 8"),
        ({"context_parallel_degree": 0}, -1, "context_parallel_degree"),
        ({"spmd_backend": "full_dtensor"}, -1, "spmd_backend: expected partial_dtensor or"),
    ],
)
def test_what_is_not_planned_is_refused_before_training(
    degrees: dict[str, Any], batch: int, message: str
) -> None:
    part = types.SimpleNamespace
    parallelism = part(**{
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "1F1B",
        "data_parallel_shard_degree": -1,
        **degrees,
    })  # fmt: skip
    training = part(
        local_batch_size=2, seq_len=8, global_batch_size=batch, mixed_precision_param="float32"
    )
    config = part(training=training, parallelism=parallelism)
    with pytest.raises(acplan.AcplanError, match=message) as error:
        acplan.torchtitan.Policy.from_config(config, "min")
    assert len(str(error.value).splitlines()) == 1


def test_each_stage_of_a_rank_takes_its_part_of_the_plan() -> None:
    case = PipelineCase("Interleaved1F1B", {"pp": 2}, [], schedule="Interleaved1F1B")
    args, target = case.inputs(0, case.tokens_of(0))
    make = functools.partial(case.make_on_meta_of, 0)
    options = {**case.options_of(0), **target, "progress": False}
    plan = acplan.plan(acplan.trace(make, *args, **options), "min", time_limit=1)
    whole = acplan.apply(make(), plan)
    step = TitanPipeline(types.SimpleNamespace(), 8)
    count = 0

    def make_plan() -> acplan.Plan:
        nonlocal count
        count += 1
        return plan

    for training in (1, 2):
        for stage, with_units in zip(make().children(), whole.children(), strict=True):
            part = step.part_of_plan(stage, make_plan)
            acplan.apply(stage, part)
            assert [*dict(stage.named_modules())] == [*dict(with_units.named_modules())]
            assert part.modules and count == training
    with pytest.raises(acplan.AcplanError, match="found another Sequential"):
        part_of(plan, nn.Sequential(nn.Linear(8, 8)))


@pytest.mark.parametrize("backend", ["partial_dtensor", "spmd_types"])
@pytest.mark.parametrize("is_split", [True, False])
def test_stages_under_tensor_parallelism_know_what_is_sent(
    is_split: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"TORCH_DTYPE_MAP": {"bfloat16": torch.bfloat16}}
    monkeypatch.setitem(sys.modules, "torchtitan.config", _stand_in("config", **names))
    part = types.SimpleNamespace
    config = part(
        training=part(mixed_precision_param="bfloat16"),
        parallelism=part(
            tensor_parallel_degree=2,
            enable_sequence_parallel=is_split,
            pipeline_parallel_microbatch_size=1,
            spmd_backend=backend,
        ),
        model_spec=part(model=part(dim=16)),
    )
    with Parallel({"world": 4}, (), 0).group_made():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        dims = part(get_mesh=lambda name: mesh[name])
        make = TitanPipeline(config, 8)._stage(lambda *_, **options: options, dims)
        first, middle, last = (make(None, index, 3) for index in range(3))
    assert [*first] == ["output_grads"] and [*last] == ["input_args"]
    for (boundary,) in (*first.values(), *middle.values(), *last.values()):
        if backend == "partial_dtensor":
            assert boundary.shape == (1, 8, 16)
            assert boundary.placements == (Shard(1) if is_split else Replicate(),)
            boundary = boundary.to_local()
        assert type(boundary) is torch.Tensor and boundary.dtype == torch.bfloat16
        assert boundary.shape == (1, 4 if is_split else 8, 16)


def test_losses_of_four_processes_are_those_without_a_plan() -> None:
    pytest.importorskip("torchtitan")
    import compare_torchtitan

    folder = os.getcwd()
    try:
        for case in compare_torchtitan.CASES:
            plain, with_plan = (
                compare_torchtitan.results_of(case, budget, 3) for budget in ("", "min")
            )
            assert all(result.pop("wrapped") for result in with_plan)
            assert not any(result.pop("wrapped") for result in plain)
            assert plain == with_plan
    finally:
        os.chdir(folder)
