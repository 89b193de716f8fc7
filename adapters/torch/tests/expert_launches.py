"""Counts the operators that a layer with experts runs, those that move no data left out.

Each is a launch for the host. The cost model of training counts them by these counts
(costmodel/training/layer/layer_operations.cc).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operators that give views, allocate, or wait.
_NO_KERNEL = set(
    "view _unsafe_view t transpose permute expand slice select unsqueeze squeeze detach "
    "as_strided alias reshape split split_with_sizes unbind chunk _reshape_alias lift_fresh "
    "is_same_size narrow empty empty_like new_empty empty_strided new_empty_strided item "
    "_local_scalar_dense wait_tensor _wrap_tensor_autograd".split()
)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func._schema.name.split("::")[1] not in _NO_KERNEL:
            self.count += 1
        return func(*args, **(kwargs or {}))


@dataclasses.dataclass
class Launches:
    forward: int
    backward: int


# The sum of the output, and the gradient of that sum.
_OF_THE_LOSS = 2


def count_launches(
    run: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor
) -> Launches:
    """Counts the operators of `run` and of its backward pass."""
    with _Counter() as forward:
        output = run(inputs)
    with _Counter() as backward:
        output.sum().backward()
    return Launches(forward.count, backward.count - _OF_THE_LOSS)


def initialize(module: torch.nn.Module) -> torch.nn.Module:
    """Sets parameters to random values in bfloat16, for training."""
    module = module.to(torch.bfloat16)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return module.train()


def tokens(*shape: int) -> torch.Tensor:
    """Makes the inputs of a layer."""
    return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True)


def transformers_launches(experts: int) -> Iterator[tuple[str, str, Launches]]:
    """Counts the layers with experts of transformers: model, kind of products, launches."""
    from transformers import DeepseekV3Config, MixtralConfig, Qwen3MoeConfig
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    mixtral = MixtralConfig(hidden_size=64, intermediate_size=128, num_local_experts=experts)
    qwen3 = Qwen3MoeConfig(
        hidden_size=64, moe_intermediate_size=128, num_experts=experts, num_experts_per_tok=2
    )
    deepseek = DeepseekV3Config(
        hidden_size=64,
        moe_intermediate_size=128,
        n_routed_experts=experts,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=2,
    )
    for products in ("grouped_mm", "eager"):
        for name, config, block in (
            ("Mixtral", mixtral, MixtralSparseMoeBlock),
            ("Qwen3-MoE", qwen3, Qwen3MoeSparseMoeBlock),
            ("DeepSeek-V3", deepseek, DeepseekV3MoE),
        ):
            config._experts_implementation = products
            module = initialize(block(config))
            yield name, products, count_launches(module, tokens(2, 128, 64))
