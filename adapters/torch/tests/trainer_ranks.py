"""Training on two processes with plans and without: transformers' Trainer and Lightning
(DDP) and accelerate (FSDP2), also with PEFT's adapters. The first process prints what was
found, as JSON."""

import functools
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import accelerate
import torch
import torch.distributed as dist
import transformers
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch._subclasses.fake_tensor import is_fake
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import acplan
from acplan._apply.unit import Unit

sys.path.insert(0, os.path.dirname(__file__))
from test_training_runs import Sentences, _llama  # noqa: E402

Result = tuple[list[float], dict[str, torch.Tensor], int]
Parallelize = Callable[[torch.nn.Module, DeviceMesh], None]


def _units(plan: acplan.Plan | None) -> int:
    return 0 if plan is None else len(plan.modules)


def _model(has_adapters: bool) -> Any:
    if not has_adapters:
        return _llama()
    import peft

    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(_llama(), config)


def _with_trainer(is_planned: bool, is_mixed: bool, has_adapters: bool = False) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            max_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            ddp_backend="gloo",
            disable_tqdm=True,
            bf16=is_mixed,
        )
        trainer = transformers.Trainer(
            _model(has_adapters), arguments, train_dataset=Sentences(65, seed=2)
        )
        plan = None
        if is_planned:
            plan = acplan.transformers.auto_checkpoint(trainer, "min", time_limit=1)
        trainer.train()
        losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
        return losses, dict(trainer.model.state_dict()), _units(plan)


def _with_accelerate(is_planned: bool, is_mixed: bool, has_adapters: bool = False) -> Result:
    AcceleratorState._reset_state(True)
    PartialState(cpu=True, backend="gloo")
    # accelerate shards on devices other than the CPU only.
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    shards = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    accelerator = accelerate.Accelerator(
        mixed_precision="bf16" if is_mixed else "no",
        gradient_accumulation_steps=2,
        fsdp_plugin=shards,
    )
    model: Any = _model(has_adapters)
    data: Any = torch.utils.data.DataLoader(Sentences(64, seed=2), 8)
    plan = None
    if is_planned:
        plan = acplan.accelerate.auto_checkpoint(
            accelerator, model, budget="min", time_limit=1, **next(iter(data))
        )
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    torch.manual_seed(dist.get_rank())
    losses = []
    for batch in data:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    state = {name: value.full_tensor() for name, value in model.state_dict().items()}
    return losses, state, _units(plan)


def _fully_shard(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    for block in model.get_submodule("model.layers").children():
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])


def _split_products(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    styles: dict[str, ParallelStyle] = {}
    for part, columns, row in (("self_attn", "q k v", "o"), ("mlp", "gate up", "down")):
        names = [f"{part}.{name}_proj" for name in columns.split()]
        styles |= {
            **dict.fromkeys(names, ColwiseParallel()),
            f"{part}.{row}_proj": RowwiseParallel(),
        }
    for block in model.get_submodule("model.layers").children():
        parallelize_module(block, mesh["tensor_parallel"], styles)


def _with_lightning(
    is_planned: bool, is_mixed: bool, parallelize: Parallelize | None = None
) -> Result:
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = _llama()
            self.losses: list[torch.Tensor] = []

        def configure_model(self) -> None:
            if parallelize is not None:
                parallelize(self.model, self.device_mesh)

        def training_step(self, batch: Any) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch).loss
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            # AdamW has no lists of tensors on two meshes.
            return torch.optim.AdamW(self.parameters(), lr=1e-2, foreach=False)

    sizes = (1, 2) if parallelize is _split_products else (2, 1)
    callback = acplan.lightning.AcplanCallback("min", time_limit=1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(*sizes) if parallelize else "ddp",
        max_epochs=1,
        callbacks=[callback] if is_planned else [],
        precision="bf16-mixed" if is_mixed else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    lightning.seed_everything(3, verbose=False)
    trainer.fit(module, torch.utils.data.DataLoader(Sentences(64, seed=2), 8))
    plan = callback.plan if is_planned else None
    # The callback traced one step more, on fake tensors.
    losses = [loss.item() for loss in module.losses if not is_fake(loss)]
    state = {name: _whole(value) for name, value in module.state_dict().items()}
    return losses, state, _units(plan)


def _with_tp_plan(is_planned: bool, is_mixed: bool) -> Result:
    """Trains a model that transformers splits by its own tp_plan, in a plain loop."""
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        if dist.get_rank() == 0:
            _llama().save_pretrained(own)
        dist.barrier()
        model = transformers.LlamaForCausalLM.from_pretrained(folder[0], tp_plan="auto")
        dist.barrier()
    model.train()
    torch.manual_seed(3)
    data = [*torch.utils.data.DataLoader(Sentences(64, seed=2), 8)]
    autocast = "bf16" if is_mixed else None
    make_optimizer = functools.partial(torch.optim.AdamW, lr=1e-2, foreach=False)
    options: dict[str, Any] = {"optimizer": make_optimizer, "autocast": autocast}
    if is_planned:
        acplan.auto_checkpoint(model, budget="min", time_limit=1, **options, **data[0])
    optimizer = make_optimizer(model.parameters())
    losses = []
    for batch in data:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    state = {name: _whole(value) for name, value in model.state_dict().items()}
    return losses, state, sum(isinstance(part, Unit) for part in model.modules())


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _case(run: Any, is_mixed: bool) -> dict[str, Any]:
    try:
        expected, weights, _ = run(False, is_mixed)
        losses, planned_weights, units = run(True, is_mixed)
    except Exception:
        return {"error": traceback.format_exc()}
    is_same = weights.keys() == planned_weights.keys()
    is_same = is_same and all(torch.equal(weights[k], planned_weights[k]) for k in weights)
    return {
        "error": "",
        "losses": [expected, losses],
        "same_weights": is_same,
        "units": units,
    }


def _errors() -> list[str]:
    """Returns the errors of a budget that no plan fits, indexed by rank."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    accelerator = accelerate.Accelerator()
    message = ""
    try:
        acplan.accelerate.auto_checkpoint(
            accelerator,
            model,
            budget="1KiB",
            loss_fn=lambda output: output.sum(),
            input=torch.zeros(2, 4),
        )
    except acplan.AcplanError as error:
        message = str(error)
    messages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(messages, message)
    return messages


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, run in (("ddp", _with_trainer), ("fsdp2", _with_accelerate)):
        for is_mixed in (False, True):
            results[name + ", bf16" * is_mixed] = _case(run, is_mixed)
        with_adapters = functools.partial(run, has_adapters=True)
        results[f"{name}, peft"] = _case(with_adapters, True)
    results["ddp, lightning"] = _case(_with_lightning, True)
    for name, parallelize in (("fsdp2", _fully_shard), ("tp", _split_products)):
        run_sharded = functools.partial(_with_lightning, parallelize=parallelize)
        results[f"{name}, lightning"] = _case(run_sharded, True)
    results["tp, transformers"] = _case(_with_tp_plan, True)
    results["errors"] = _errors()
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
