"""The policies that `acplan emit` prints, applied by the trainers' own code, and the step with
them, traced on fake tensors."""

import collections
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import subprocess
import tempfile
import types
from collections.abc import Callable
from typing import Any

from torch import nn

import acplan
from acplan._base import kv_caches
from acplan._device.devices import find_device
from acplan._step.step import alone, step_on_fakes
from acplan._step.training_step import TrainingStep
from acplan._verify.retrace import _Options

Apply = Callable[[nn.Module, str], None]


@dataclasses.dataclass(frozen=True)
class Truth:
    """A step as the trainer's checkpoints make it."""

    peak_bytes: int
    # The operators that run in addition to those of the plain step, by name.
    reruns: collections.Counter[str]


def emitted(trace: acplan.Trace, trainer: str, budget: str, *options: str) -> dict[str, Any]:
    """Returns what `acplan emit --json` prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "step.trace.json.gz"
        trace.save(path)
        program = os.environ.get("ACPLAN", "acplan")
        command = [program, "emit", str(path), "--for", trainer, "--budget", budget, "--json"]
        answer = subprocess.run([*command, *options], capture_output=True, text=True)
    if answer.returncode not in (0, 3, 4):
        raise acplan.AcplanError(answer.stderr.strip())
    emission: dict[str, Any] = json.loads(answer.stdout)
    return emission


def truth(
    model: nn.Module, inputs: dict[str, Any], trace: acplan.Trace, apply: Apply, text: str,
    **options: Any,
) -> Truth:  # fmt: skip
    """Traces the step with the trainer's own checkpoints. `trace` is the step without them."""
    target = find_device("a100")
    kernels = target if options.pop("workspaces", True) else None
    training = TrainingStep.from_arguments(model, (), {**inputs, **options})
    with (
        alone(),
        kv_caches.switched_off(model),
        step_on_fakes(training, target) as (step, optimizer),
    ):
        step.model.zero_grad(set_to_none=True)
        apply(step.model, text)
        operators = _Options(target, kernels).retraced(step, optimizer, False).operators
    plain = collections.Counter(operator["name"] for operator in trace.data["operators"])
    reruns = collections.Counter(operator.name for operator in operators)
    reruns.subtract(plain)
    return Truth(
        max(operator.live_bytes for operator in operators),
        collections.Counter({name: count for name, count in reruns.items() if count}),
    )


def _run(text: str, **names: Any) -> dict[str, Any]:
    """Runs a configuration that is Python."""
    scope: dict[str, Any] = dict(names)
    exec(compile(text, "configuration", "exec"), scope)
    return scope


def _torch(model: nn.Module, text: str) -> None:
    _run(text)["checkpoint_blocks"](model)


def _enable(model: nn.Module, args: Any) -> None:
    """Does what transformers' Trainer does before it trains."""
    if args.gradient_checkpointing:
        # PEFT's models hand the call on to the model inside.
        enable: Any = model.gradient_checkpointing_enable
        options = dict(args.gradient_checkpointing_kwargs or {})
        further = (
            {"every_n_layers": options.pop("every_n_layers")}
            if "every_n_layers" in options
            else {}
        )
        enable(gradient_checkpointing_kwargs=options, **further)


def _transformers(model: nn.Module, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _enable(model, _run(text)["args"])


def _trl(model: nn.Module, text: str) -> None:
    # SFTConfig needs the package datasets; the trainer reads these two of its fields.
    policies = importlib.import_module("trl.models.selective_activation_checkpointing")
    args = _run(text.replace("from trl import SFTConfig", ""), SFTConfig=types.SimpleNamespace)[
        "args"
    ]
    if (getattr(args, "gradient_checkpointing_kwargs", None) or {}).get("selective"):
        policies.enable_selective_activation_checkpointing(model)
    _enable(model, args)


def _axolotl(model: nn.Module, text: str) -> None:
    yaml = importlib.import_module("yaml")
    policies = importlib.import_module("axolotl.monkeypatch.selective_checkpointing")
    config = yaml.safe_load(text)
    if selective := config.get("selective_checkpointing"):
        policies.apply_selective_checkpointing(model, **selective)
    config.setdefault("gradient_checkpointing_kwargs", None)
    _enable(model, types.SimpleNamespace(**config))


def _torchtitan(model: nn.Module, text: str) -> None:
    importlib.import_module("torchtitan.distributed.activation_checkpoint")
    config = _run(text, __name__="configuration")["activation_checkpoint"]
    if config is not None:
        # It looks for the blocks in an attribute `layers`, which is that of the model inside.
        owner = next(
            module for module in model.modules() if isinstance(_layers(module), nn.ModuleList)
        )
        config.build(dump_folder="").apply(owner)


def _layers(module: nn.Module) -> object:
    return getattr(module, "layers", None)


def _accelerate(model: nn.Module, text: str) -> None:
    yaml = importlib.import_module("yaml")
    accelerate = importlib.import_module("accelerate.utils")
    fsdp = importlib.import_module("accelerate.utils.fsdp_utils")
    config = yaml.safe_load(text)["fsdp_config"]
    if not config["fsdp_activation_checkpointing"]:
        return
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=config["fsdp_version"],
        activation_checkpointing=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=config["fsdp_transformer_layer_cls_to_wrap"].split(","),
    )
    plugin.set_auto_wrap_policy(model)
    state = types.SimpleNamespace(fsdp_plugin=plugin)
    fsdp.fsdp2_apply_ac(types.SimpleNamespace(state=state), model)


def _lightning(model: nn.Module, text: str) -> None:
    fsdp = importlib.import_module("lightning.fabric.strategies.fsdp")
    classes = {type(module).__name__: type(module) for module in model.modules()}
    strategy = functools.partial(dict)
    text = text.replace("from lightning.pytorch.strategies import FSDPStrategy", "")
    options = _run(text, FSDPStrategy=strategy, **classes)["strategy"]
    kwargs = fsdp._activation_checkpointing_kwargs(
        None, options.get("activation_checkpointing_policy")
    )
    fsdp._setup_activation_checkpointing(model, kwargs)


def _megatron(model: nn.Module, text: str) -> None:
    importlib.import_module("megatron_gpt").recompute(model, text)


def _nemo(model: nn.Module, text: str) -> None:
    yaml = importlib.import_module("yaml")
    policies = importlib.import_module(
        "nemo_automodel.components.distributed.activation_checkpointing"
    )
    mode = yaml.safe_load(text)["distributed"]["activation_checkpointing"]
    if not mode:
        return
    # AutoModel finds the layers of a language model in the same way.
    layers = [
        module
        for module in model.modules()
        if any(cls.__name__ == "GradientCheckpointingLayer" for cls in type(module).__mro__)
    ]
    if mode == "selective":
        policies.apply_selective_checkpointing_to_layers(model, layers, False)
    else:
        policies.apply_full_layer_checkpointing_to_layers(model, layers)


def _veomni(model: nn.Module, text: str) -> None:
    """Does what VeOmni's build_parallelize_model does, which needs a GPU."""
    config = importlib.import_module("yaml").safe_load(text)["train"]["gradient_checkpointing"]
    if config["enable"]:
        options = {
            "use_reentrant": config["enable_reentrant"],
            "early_stop": config["early_stop"],
        }
        enable: Any = model.gradient_checkpointing_enable
        enable(gradient_checkpointing_kwargs=options)


# prime-rl is not on PyPI, and MaxText runs on JAX.
TRAINERS: dict[str, Apply] = {
    "accelerate": _accelerate,
    "axolotl": _axolotl,
    "lightning": _lightning,
    "megatron": _megatron,
    "nemo": _nemo,
    "torch": _torch,
    "torchtitan": _torchtitan,
    "transformers": _transformers,
    "trl": _trl,
    "veomni": _veomni,
}
