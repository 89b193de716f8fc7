"""DeepSeek-V3 as it is trained on many GPUs: stages of a pipeline, whose experts are shards and
whose other parameters fully_shard splits over all ranks of the stage.

Attention, the router and the dense products are transformers'; the experts are those of
parallel_experts.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3MLP,
    DeepseekV3RMSNorm,
    DeepseekV3RotaryEmbedding,
    DeepseekV3TopkRouter,
)

from parallel_experts import Experts, shard_experts, through_experts
from parallel_models import MIXED


class SharedExperts(nn.Module):
    """The products of a layer: experts that a router chooses, and one for all tokens."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        hidden = config.moe_intermediate_size
        self.gate = DeepseekV3TopkRouter(config)
        experts = Experts(config.n_routed_experts, config.hidden_size, hidden, True)
        self.experts = experts.to(torch.bfloat16)
        self.shared = DeepseekV3MLP(config, intermediate_size=hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, weights, picks = self.gate(x)
        y = through_experts(self.experts, x.flatten(0, 1), picks, weights.to(x.dtype))
        return y.view(x.shape) + self.shared(x)


class DeepseekStage(nn.Module):
    """A part of the model: its layers, after the embedding if it is the first one, and before
    the head if it is the last one."""

    def __init__(self, config: DeepseekV3Config, index: int, count: int) -> None:
        super().__init__()
        layers = config.num_hidden_layers
        numbers = range(layers * index // count, layers * (index + 1) // count)
        is_last, width = index == count - 1, config.hidden_size
        embedding = nn.Embedding(config.vocab_size, width) if index == 0 else nn.Identity()
        self.embedding = embedding
        self.rotary = DeepseekV3RotaryEmbedding(config)
        self.layers = nn.ModuleList(DeepseekV3DecoderLayer(config, k) for k in numbers)
        for number, layer in zip(numbers, self.layers, strict=True):
            if number >= config.first_k_dense_replace:
                layer.mlp = SharedExperts(config)
        self.norm = DeepseekV3RMSNorm(width) if is_last else nn.Identity()
        head = nn.Linear(width, config.vocab_size, bias=False) if is_last else nn.Identity()
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        embeddings = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=embeddings)
        return self.head(self.norm(x))


def config_of_deepseek(**sizes: Any) -> DeepseekV3Config:
    """Returns the configuration of the model that was published, with other sizes if given."""
    config = DeepseekV3Config(**sizes)
    config._attn_implementation = "sdpa"
    return config


def shard_stages(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shards experts on "ep", and over the same ranks everything else, which fully_shard
    gathers."""
    options: dict[str, Any] = {"mp_policy": MIXED, "reshard_after_forward": False}
    for stage in model.children():
        experts: set[nn.Parameter] = set()
        for layer in stage.get_submodule("layers").children():
            mlp = layer.get_submodule("mlp")
            if isinstance(mlp, SharedExperts):
                shard_experts(mlp.experts, mesh)
                experts |= {*mlp.experts.parameters()}
            fully_shard(layer, mesh=mesh["ep"], ignored_params=experts, **options)
        fully_shard(stage, mesh=mesh["ep"], ignored_params=experts, **options)


def loss_of_tokens(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def make_stage(config: DeepseekV3Config, index: int, count: int) -> nn.Module:
    with torch.device("meta"):
        return nn.ModuleList([DeepseekStage(config, index, count)])


def schedule_of(
    config: DeepseekV3Config, index: int, count: int, length: int, microbatches: int
) -> Callable[[Any, Any], Schedule1F1B]:
    """Returns the function that makes the schedule of a stage, with a sequence of this length
    in each microbatch."""
    shape = (1, length, config.hidden_size)

    def make(model: Any, mesh: Any) -> Schedule1F1B:
        example = torch.empty(shape, dtype=MIXED.param_dtype, device="meta")
        stage = PipelineStage(
            model[0],
            index,
            count,
            torch.device(mesh.device_type),
            input_args=example if index else None,
            group=mesh["pp"].get_group(),
        )
        return Schedule1F1B(stage, microbatches, loss_fn=loss_of_tokens)

    return make
