"""Trains torchtitan's debug model with torchtitan's own trainer, on the CPU in one process.

    python tests/torchtitan_training.py FOLDER none|trace|CONFIGURATION

prints the losses and a digest of the weights as JSON, or traces the model into FOLDER. The
configuration is what `acplan emit --for torchtitan` prints. torchtitan expects an accelerator:
its functions of the device are stand-ins here, and attention is PyTorch's, as FlexAttention
has no backward pass on a CPU.
"""

import hashlib
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
from tokenizers import Tokenizer, models, pre_tokenizers

import acplan

_STEPS = 3
_LENGTH = 128
_WORDS = 62


def _prepare() -> None:
    """Replaces what torchtitan asks an accelerator, and a nightly build of PyTorch, for."""
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
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = lambda timeout, group: None
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    torch.set_num_threads(1)


def _write_assets() -> None:
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


def _config() -> Any:
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import config_registry

    llama3.get_attention_config = lambda backend: ScaledDotProductAttention.Config()
    config = config_registry.llama3_debugmodel()
    config.training.local_batch_size = 2
    config.training.seq_len = _LENGTH
    config.training.steps = _STEPS
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


def _train(config: Any) -> dict[str, Any]:
    from torchtitan.trainer import Trainer

    trainer = Trainer(config)
    losses = []
    log = trainer.metrics_processor.log

    def note(step: int, loss: float, *others: Any, **options: Any) -> Any:
        losses.append(float(loss))
        return log(step, loss, *others, **options)

    trainer.metrics_processor.log = note
    trainer.train()
    (model,) = trainer.model_parts
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().full_tensor().numpy().tobytes())
    return {
        "losses": losses,
        "weights": digest.hexdigest(),
        "wrapped": sum("Checkpoint" in type(module).__name__ for module in model.modules()),
    }


def main(folder: str, task: str) -> None:
    text = "" if task in ("none", "trace") else pathlib.Path(task).read_text()
    os.chdir(folder)
    _prepare()
    config = _config()
    if task == "trace":
        _trace(config)
        return
    _write_assets()
    scope: dict[str, Any] = {"__name__": "configuration", "activation_checkpoint": None}
    exec(compile(text, "configuration", "exec"), scope)
    config.activation_checkpoint = scope["activation_checkpoint"]
    print(json.dumps(_train(config)))


if __name__ == "__main__":
    main(*sys.argv[1:])
