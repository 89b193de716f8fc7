"""Training steps of public benchmarks on GPUs, for compare_gpu_truth.py: the image models of
timm, and four language models of NeuSight."""

import functools
import math
import sys
import types
import unittest.mock
from typing import Any

import torch
from torch import nn

from acplan import Device, Trace, trace
from acplan._device import devices
from acplan._device.kernel_times import kernel_seconds
from acplan._device.product_times import Call, Rates
from gpu_truth_kinds import with_kinds
from gpu_truth_operators import Row

# timm and transformers import torchvision, whose operators for images need a build for this
# PyTorch.
sys.modules.setdefault(
    "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
)

# cuDNN 8.3 to 8.5 (PyTorch 1.12 and 1.13) had no fast kernels for convolutions of few wide
# groups with channels last: RegNetX-12GF infers .48 as fast as with channels first with 1.13,
# 1.05 as fast with 2.4 (timm's tables of inference on an RTX 3090). The gradients of weights
# take so many elements of the unfolded input a second, for groups of 32 channels and
# for wider ones, as RegNets, ResNeSts and RepVGGs have it that were trained with 1.12. Groups
# of 32 channels have fast kernels if there are 32 of them, narrower ones always.
_FAST_GROUPS = (2, 0)
_UNFOLDED_ELEMENTS = (10e9, 4.6e9)

# Before PyTorch 2.8 (pytorch/pytorch#148605) the gradients of a normalisation's weights had one
# block of threads for 32 columns, which walked over all rows: EdgeNeXt has 2 million rows of 24
# to 64 elements. Two fifths of the operator's traffic are that kernel's.
_FAST_NORMS = (2, 8)
_SECONDS_OF_A_ROW = 7.8e-9
_WEIGHTS_SHARE = 0.4


def version_of(row: Row) -> tuple[int, ...]:
    """Returns the version of PyTorch that measured the row, as "1.12 cu113", or nothing."""
    version = row.get("torch", "").split(" ")[0].split(".")
    return tuple(map(int, version[:2])) if len(version) > 1 else ()


def timm_ms(row: Row, device: Device) -> float:
    """Returns the predicted milliseconds of a step of timm's training benchmark."""
    seconds = with_kinds(functools.partial(_seconds_of_build, row))
    with unittest.mock.patch.object(devices, "kernel_seconds", seconds):
        return step_ms(timm_trace(row, device, int(row["batch"]), keeps_gradients=False))


def _seconds_of_build(row: Row, call: Call, rates: Rates) -> float:
    """Returns the seconds of an operator with the kernels that the row's PyTorch had."""
    seconds, version = kernel_seconds(call, rates), version_of(row)
    name = str(call.func._overloadpacket)
    if () < version < _FAST_NORMS and name == "aten.native_layer_norm_backward":
        rows = math.prod(call.inputs[0].shape[:-1])
        seconds += max(0.0, rows * _SECONDS_OF_A_ROW - _WEIGHTS_SHARE * seconds)
    if () < version < _FAST_GROUPS and name == "aten.convolution_backward":
        seconds += _slow_groups_seconds(call) if row["precision"].endswith("nhwc") else 0.0
    return seconds


def _slow_groups_seconds(call: Call) -> float:
    gradient, image, weight = call.args[:3]
    width, groups = weight.shape[1], image.shape[1] // weight.shape[1]
    if groups == 1 or width < 32 or (width == 32 and groups >= 32):
        return 0.0
    places = gradient.numel() // gradient.shape[1]
    elements = places * image.shape[1] * math.prod(weight.shape[2:])
    return float(elements / _UNFOLDED_ELEMENTS[width > 32])


def family_of(model: str) -> str:
    """Returns the module of timm that has the model."""
    from timm.models import registry

    return str(registry._model_to_module[model])


def timm_trace(row: Row, device: Device, batch: int, keeps_gradients: bool) -> Trace:
    """Returns a step of timm's training benchmark. `keeps_gradients`: they are there from the
    step before, zeroed; that is a step that adds to gradients."""
    import timm

    model = timm.create_model(row["model"]).train()
    size = int(row["size"])
    images = torch.empty(batch, 3, size, size, device="meta")
    if row["precision"].endswith("nhwc"):
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.empty(batch, dtype=torch.long, device="meta")
    criterion = nn.CrossEntropyLoss()
    return trace(
        model,
        images,
        device=device,
        autocast="fp16",
        optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True),
        loss_fn=lambda output: criterion(output, labels.to(output.device)),
        accumulate=2 if keeps_gradients else 1,
        source=False,
    )


def llama_trace(row: Row, device: Device) -> Trace:
    """Returns a step of Llama-3.2-1B as NVIDIA's benchmark of attention runs it: embeddings in,
    keys and values repeated for the heads of queries, the kind of attention in `build`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.integrations import sdpa_attention

    config = LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=8192,
        vocab_size=128256,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    batch, length = int(row["batch"]), int(row["size"])
    inputs = torch.empty(batch, length, 2048, dtype=torch.bfloat16, device="meta")
    target = torch.empty(batch * length, dtype=torch.long, device="meta")
    criterion = nn.CrossEntropyLoss()
    backend = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
    }[row["build"]]
    with (
        unittest.mock.patch.object(sdpa_attention, "use_gqa_in_sdpa", lambda *_, **__: False),
        sdpa_kernel([backend]),
    ):
        return trace(
            model,
            inputs_embeds=inputs,
            device=device,
            optimizer=torch.optim.SGD(model.parameters(), 1e-6),
            loss_fn=lambda output: criterion(
                output.logits.view(batch * length, -1), target.to(output.logits.device)
            ),
            source=False,
        )


def step_ms(traced: Trace) -> float:
    return math.fsum(operator["runtime_ms"] for operator in traced.data["operators"])


LANGUAGE_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_large": (
        "bert",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "gpt2_large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt3_27": ("gpt2", {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048}),
    "opt_13": (
        "opt",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "word_embed_proj_dim": 2048,
        },
    ),
}


@functools.cache
def language_model_ms(
    name: str, batch: int, length: int, device: Device
) -> tuple[float, float]:
    """Returns the predicted milliseconds of the forward and the backward pass."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    kind, settings = LANGUAGE_MODELS[name]
    config = AutoConfig.for_model(kind, **settings)
    config._attn_implementation = "eager"
    auto = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
        tokens = torch.empty(batch, length, dtype=torch.long)
    data = trace(
        model, input_ids=tokens, labels=tokens, device=device, optimizer=None, source=False
    ).data
    times = [operator["runtime_ms"] for operator in data["operators"]]
    forward, backward = data["forward_end"], data["backward_end"]
    return math.fsum(times[:forward]), math.fsum(times[forward:backward])
