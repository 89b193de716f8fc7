"""Trains torchtitan's debug model with torchtitan's own trainer, on the CPU in one process.

    python tests/torchtitan_training.py FOLDER none|trace|CONFIGURATION

prints the losses and a digest of the weights as JSON, or traces the model into FOLDER. The
configuration is what `acplan emit --for torchtitan` prints. torchtitan expects an accelerator:
its functions of the device are stand-ins here, and attention is PyTorch's, as FlexAttention
has no backward pass on a CPU.
"""

import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import random
import sys
import types
from typing import Any

import torch
import torch._utils
import torch.distributed
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor

import acplan
from parallel_attention import kernels_on_cpu

_STEPS = 3
_LENGTH = 128
_WORDS = 62


def stand_in_for_a_device() -> None:
    """Replaces what torchtitan asks an accelerator for, before it is imported."""
    device = types.SimpleNamespace(
        set_device=lambda device: None,
        current_device=lambda: 0,
        device_count=lambda: 1,
        get_device_name=lambda device: "cpu",
        get_device_properties=lambda device: types.SimpleNamespace(total_memory=1 << 34),
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        memory_stats=lambda device: {},
        synchronize=lambda: None,
    )
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda name: device


def prepare(rank: int = 0, world_size: int = 1, init_method: str = "") -> None:
    """Replaces what torchtitan asks an accelerator, a nightly build of PyTorch, and NCCL
    for."""
    stand_in_for_a_device()
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = lambda timeout, group: None
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ |= {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if init_method:
        begin = torch.distributed.init_process_group
        own = {"init_method": init_method, "rank": rank, "world_size": world_size}

        def begin_here(*args: Any, **options: Any) -> None:
            begin(*args, **options, **({} if "store" in options else own))

        torch.distributed.init_process_group = begin_here
    # Gloo has no PREMUL_SUM.
    set_factor = FSDPModule.set_gradient_divide_factor

    def set_factor_of_sum(module: FSDPModule, factor: float) -> None:
        set_factor(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_factor_of_sum  # type: ignore[method-assign]  # for gloo
    take_microbatches()
    torch.set_num_threads(1)


def take_microbatches() -> None:
    """Lets schedules take lists of microbatches, as those of a nightly build of PyTorch do."""
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        # mypy lets no method be replaced; the process ends with the training.
        kind.step = _stepping(kind.step)  # type: ignore[method-assign]


def _stepping(plain: Any) -> Any:
    def step(self: Any, *args: Any, kwarg_mbs: Any = None, **options: Any) -> Any:
        if kwarg_mbs is None:
            return plain(self, *args, **options)
        stages = self._stages if hasattr(self, "_stages") else [self._stage]
        for stage in stages:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        return self._step_microbatches(kwarg_mbs=kwarg_mbs, **options)

    return step


def attention_on_cpu() -> None:
    """Lets attention run, from now on, the operators of a GPU that ring attention needs."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float | None = None,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        assert query.shape[1] == key.shape[1]  # the kernel has no groups of heads
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        out: torch.Tensor = efficient(
            query, key, value, None, True, 0.0, is_causal, scale=scale
        )[0]
        return out

    stack = contextlib.ExitStack()
    stack.enter_context(kernels_on_cpu())
    _for_good.append(stack)
    F.scaled_dot_product_attention = attention


_for_good: list[contextlib.ExitStack] = []


def write_assets() -> None:
    """Writes the tokenizer and the texts that the debug model's configuration names."""
    folder = pathlib.Path("tests/assets")
    for name in ("tokenizer", "c4_test"):
        (folder / name).mkdir(parents=True)
    words = {f"w{k}": k for k in range(_WORDS)} | {"<s>": _WORDS, "</s>": _WORDS + 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(tokens))
    draw = random.Random(1)
    texts = (" ".join(f"w{draw.randrange(_WORDS)}" for _ in range(90)) for _ in range(100))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "c4_test" / "data.json").write_text(lines)


def config_of(
    package: str = "llama3", function: str = "llama3_debugmodel", steps: int = _STEPS
) -> Any:
    from torchtitan.models.common.attention import ScaledDotProductAttention

    model: Any = importlib.import_module(f"torchtitan.models.{package}")
    model.get_attention_config = lambda backend: ScaledDotProductAttention.Config()
    registry = importlib.import_module(f"torchtitan.models.{package}.config_registry")
    config = getattr(registry, function)()
    config.training.local_batch_size = 2
    config.training.seq_len = _LENGTH
    config.training.steps = steps
    config.training.disable_cuda_graphs = True
    config.debug.seed = 1
    config.debug.deterministic = True
    config.checkpoint.enable = config.validator.enable = False
    return config


def _trace(config: Any) -> None:
    with torch.device("meta"):
        model = config.model_spec.model.build().train()
    tokens = torch.zeros(2, _LENGTH, dtype=torch.long)
    trace = acplan.trace(
        model, tokens, loss_fn=lambda out: out.float().pow(2).mean(), optimizer="adamw",
        progress=False,
    )  # fmt: skip
    trace.save("step.trace.json.gz")


def train(config: Any) -> dict[str, Any]:
    from torchtitan.trainer import Trainer

    trainer = Trainer(config)
    losses = []
    log = trainer.metrics_processor.log

    def note(step: int, loss: float, *others: Any, **options: Any) -> Any:
        losses.append(float(loss))
        return log(step, loss, *others, **options)

    trainer.metrics_processor.log = note
    trainer.train()
    model = torch.nn.ModuleList(trainer.model_parts)
    digest = hashlib.sha256()
    for weight in model.parameters():
        weight = weight.detach()
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        digest.update(local.float().numpy().tobytes())
    return {
        "losses": losses,
        "weights": digest.hexdigest(),
        "wrapped": sum(isinstance(module, CheckpointWrapper) for module in model.modules()),
    }


def main(folder: str, task: str) -> None:
    text = "" if task in ("none", "trace") else pathlib.Path(task).read_text()
    os.chdir(folder)
    prepare()
    config = config_of()
    if task == "trace":
        _trace(config)
        return
    write_assets()
    scope: dict[str, Any] = {"__name__": "configuration", "activation_checkpoint": None}
    exec(compile(text, "configuration", "exec"), scope)
    config.activation_checkpoint = scope["activation_checkpoint"]
    print(json.dumps(train(config)))


if __name__ == "__main__":
    main(*sys.argv[1:])
