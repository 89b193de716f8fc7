"""Levers that train low-rank adapters in place of the weights: LoRA, and QLoRA, whose weights
have four bits.

bitsandbytes' own layers of four bits need its library, and on most of its versions a GPU. A
stand-in has the memory of them: packed weights, scales that are quantised themselves, and in
each pass, as long as a product runs, the weight in 16 bits.
"""

import contextlib
import dataclasses
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from acplan._advise.levers import METHOD, Lever, NotApplicable
from acplan._advise.precision import copy_on_meta, half_weights, optimizer_for_others
from acplan._step.training_step import TrainingStep

_RANK = 16
_BLOCK = 64  # weights that share a scale
_SCALES = 256  # scales that share a scale


def adapter_levers(step: TrainingStep) -> Iterator[Lever]:
    """Yields the levers of adapters. `step` says how their lines are written."""
    config = f"peft.LoraConfig(r={_RANK}, target_modules={_targets(step.model)!r})"
    how = f"model = peft.get_peft_model(model, {config})"
    yield Lever(f"LoRA r={_RANK}", how, _lora, "method", METHOD)
    quantized = (
        "BitsAndBytesConfig(load_in_4bit=True, "
        'bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
        "bnb_4bit_compute_dtype=torch.bfloat16)"
    )
    loading = (
        f"model = {_loader(step.model)}.from_pretrained(..., dtype=torch.bfloat16, "
        f"quantization_config={quantized})"
    )
    yield Lever(f"QLoRA r={_RANK}", f"{loading}\n{how}", _qlora, "method", METHOD)


def _loader(model: torch.nn.Module) -> str:
    return f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}"


def _targets(model: torch.nn.Module) -> str | list[str]:
    """Returns the layers that get adapters, as peft has them: all but the one that makes
    logits."""
    if hasattr(model, "get_output_embeddings"):
        return "all-linear"
    names = {
        ".".join(
            name.split(".")[-2:] if name.split(".")[-1].isdecimal() else [name.split(".")[-1]]
        )
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    return sorted(names)


@contextlib.contextmanager
def _lora(step: TrainingStep) -> Iterator[TrainingStep]:
    yield _with_adapters(copy_on_meta(step))


@contextlib.contextmanager
def _qlora(step: TrainingStep) -> Iterator[TrainingStep]:
    if not hasattr(type(step.model), "from_pretrained"):
        raise NotApplicable("only models that from_pretrained loads are loaded in four bits")
    changed = half_weights(step)
    own: Any = changed.model
    output = own.get_output_embeddings() if hasattr(own, "get_output_embeddings") else None
    for module in list(changed.model.modules()):
        for name, layer in module.named_children():
            if type(layer) is torch.nn.Linear and layer is not output:
                setattr(module, name, _FourBits(layer))
    yield _with_adapters(changed)


def _with_adapters(step: TrainingStep) -> TrainingStep:
    """Returns the step with adapters in its model, which is changed."""
    try:
        peft = importlib.import_module("peft")
    except ImportError:
        raise NotApplicable("it needs peft: pip install peft") from None
    if any(hasattr(module, "lora_A") for module in step.model.modules()):
        raise NotApplicable("the model has adapters already")
    targets = _targets(step.model)
    if not targets:
        raise NotApplicable("the model has no torch.nn.Linear")
    config = peft.LoraConfig(r=_RANK, target_modules=targets)
    with warnings.catch_warnings():
        # Meta tensors have no values that an initialisation could lose.
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(
            step.model,
            config,
            low_cpu_mem_usage=True,
            autocast_adapter_dtype=step.parallel is None,
        )
    return dataclasses.replace(step, model=model, optimizer=optimizer_for_others(step))


class _FourBits(torch.nn.Linear):
    """A stand-in for bitsandbytes' Linear4bit with nested scales."""

    scales: torch.Tensor
    offset: torch.Tensor

    def __init__(self, layer: torch.nn.Linear) -> None:
        has_bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, has_bias, device="meta")
        if has_bias:
            self.bias = layer.bias
        self.dtype = layer.weight.dtype
        count = layer.weight.numel()
        scales = -(-count // _BLOCK)
        packed = torch.empty(-(-count // 2), 1, dtype=torch.uint8, device="meta")
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        for name, shape, dtype in (
            ("scales", scales, torch.uint8),
            ("scales_of_scales", -(-scales // _SCALES), torch.float32),
            ("offset", (), torch.float32),
            ("codes", 16, torch.float32),
            ("codes_of_scales", 256, torch.float32),
        ):
            tensor = torch.empty(shape, dtype=dtype, device="meta")
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apply: Any = _FourBitProduct.apply  # which PyTorch gives no type
        result: torch.Tensor = apply(x.to(self.dtype), self)
        # peft copies the results of layers of four bits.
        return result.to(x.dtype).clone()

    def unpacked(self) -> torch.Tensor:
        """Returns the weight as the kernels of bitsandbytes make it, of any values."""
        scales = self.scales.float()
        scales += self.offset
        weight = self.weight.expand(-1, 2).to(self.dtype)
        del scales
        return weight.view(self.out_features, self.in_features)


class _FourBitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: _FourBits) -> torch.Tensor:
        ctx.layer = layer
        return torch.nn.functional.linear(x, layer.unpacked(), layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] @ ctx.layer.unpacked(), None
