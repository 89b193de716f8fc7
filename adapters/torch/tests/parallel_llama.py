"""Llama of transformers as it is trained on many GPUs: fully_shard on tensor parallelism with
split sequences and logits."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import LlamaConfig, LlamaForCausalLM

from parallel_models import MIXED

LLAMA_70B = {
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
LLAMA_8B = LLAMA_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def llama_on_meta(sizes: dict[str, int]) -> nn.Module:
    config = LlamaConfig(**sizes, use_cache=False)  # type: ignore[arg-type]  # sizes alone
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def loss_of_llama(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    # With a split sequence, the model itself would count the positions of its own part.
    positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
    logits = model(tokens, position_ids=positions).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def split_llama(model: nn.Module, mesh: DeviceMesh) -> None:
    """Splits products, sequences and logits over the dimension "tp"."""
    tp, sequence = mesh["tp"], Shard(1)
    of_model: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=sequence
        ),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(
            input_layouts=sequence, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(model, tp, of_model)
    columns = [f"self_attn.{name}_proj" for name in "qkv"] + ["mlp.gate_proj", "mlp.up_proj"]
    of_layer: dict[str, Any] = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": sequence},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(
            input_layouts=(sequence,), desired_input_layouts=(Replicate(),)
        ),
        **{name: ColwiseParallel() for name in columns},
        "self_attn.o_proj": RowwiseParallel(output_layouts=sequence),
        "mlp.down_proj": RowwiseParallel(output_layouts=sequence),
    }
    for layer in model.get_submodule("model.layers").children():
        parallelize_module(layer, tp, of_layer)


def shard_llama(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shards every layer, and the rest with the root, over the dimension "dp"."""
    for module in (*model.get_submodule("model.layers").children(), model):
        fully_shard(module, mesh=mesh["dp"], mp_policy=MIXED)
