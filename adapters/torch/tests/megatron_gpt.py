"""A small GPT of Megatron-Core, whose own recomputation is switched on by the flags of `acplan
emit`. Megatron-Core asks CUDA for random states and buffers: here it asks nobody."""

import contextlib
import functools
import shlex
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from acplan._base.patching import replaced_here
from acplan._step.step_log import StepLog


class _Buffers:
    """Megatron-Core's global buffer, on the device of the model's inputs."""

    device: torch.device | None = None

    def get_tensor(self, shape: Any, dtype: torch.dtype, name: str) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)


_BUFFERS = _Buffers()


@contextlib.contextmanager
def _same_random_states() -> Iterator[None]:
    yield


@functools.cache
def prepare() -> None:
    """Sets Megatron-Core up for one process without a GPU."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    parallel_state.get_global_memory_buffer = lambda: _BUFFERS
    random._get_all_rng_states = lambda: (None,)
    random._set_all_rng_states = lambda *states: None
    random._fork_rng = _same_random_states
    random.CudaRNGStatesTracker.fork = lambda self, *name: contextlib.nullcontext()
    # Checkpoints that discard their results ask Transformer Engine, even without FP8.
    random.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
    random.activation_recompute_forward = lambda **options: contextlib.nullcontext()
    random.fp8_autocast = lambda **options: contextlib.nullcontext()
    # Experts copy counts in a stream of their own, and ask for Transformer Engine's products.
    token_dispatcher.MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = object()
    moe_utils.te_general_gemm = None


@contextlib.contextmanager
def discarded_results_count() -> Iterator[None]:
    """Counts, within the block, the memory that Megatron-Core takes from results and gives back
    to them. StepLog counts a storage that is made in the step as it was made; and PyTorch keeps
    fake storages that were copied, so nothing is copied here."""
    plain = StepLog.resized

    def resized(log: StepLog, storage: torch.UntypedStorage, bytes_before: int) -> None:
        entry = log.storages[log._number_of(storage, -1, True)]
        born, entry.born = entry.born, -1
        pieces = len(log.storages)
        plain(log, storage, bytes_before)
        entry.born = born
        for piece in log.storages[pieces:]:
            piece.born = born if piece.born < 0 else piece.born

    def copy_(storage: torch.UntypedStorage, source: Any, *options: Any) -> Any:
        return storage

    with (
        replaced_here(StepLog, "resized", resized),
        replaced_here(torch.UntypedStorage, "copy_", copy_),
    ):
        yield


class MegatronGpt(nn.Module):
    """Megatron-Core's GPTModel without Transformer Engine. Experts beside a shared one have
    room for the same number of tokens each, so that shapes depend on no values."""

    def __init__(
        self, layers: int = 4, hidden: int = 256, length: int = 128, experts: int | None = None
    ) -> None:
        super().__init__()
        prepare()
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.transformer.transformer_config import TransformerConfig

        expert_options: dict[str, Any] = {
            "num_moe_experts": experts, "moe_ffn_hidden_size": hidden,
            "moe_shared_expert_intermediate_size": hidden, "moe_router_topk": 2,
            "moe_router_load_balancing_type": "none", "moe_token_dispatcher_type": "alltoall",
            "moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True,
        }  # fmt: skip
        config = TransformerConfig(
            num_layers=layers, hidden_size=hidden, num_attention_heads=4, num_query_groups=2,
            ffn_hidden_size=11 * hidden // 4, normalization="RMSNorm", gated_linear_unit=True,
            activation_func=nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0,
            attention_dropout=0.0, use_cpu_initialization=True, perform_initialization=False,
            bias_activation_fusion=False, bias_dropout_fusion=False,
            masked_softmax_fusion=False, gradient_accumulation_fusion=False,
            **(expert_options if experts else {}),
        )  # fmt: skip
        self.gpt = GPTModel(
            config, get_gpt_layer_local_spec(experts, normalization="RMSNorm"),
            vocab_size=512, max_sequence_length=length,
            position_embedding_type="learned_absolute",
            share_embeddings_and_output_weights=False,
        )  # fmt: skip

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        _BUFFERS.device = tokens.device
        loss: torch.Tensor = self.gpt(tokens, positions, mask).float().pow(2).mean()
        return loss


def inputs(batch: int = 2, length: int = 128) -> dict[str, torch.Tensor]:
    """Returns a batch of MegatronGpt."""
    return {
        "tokens": torch.randint(0, 512, (batch, length)),
        "positions": torch.arange(length).repeat(batch, 1),
        "mask": torch.triu(torch.ones(1, 1, length, length), 1).bool(),
    }


def recompute(model: nn.Module, text: str) -> None:
    """Switches on what the flags say, as the constructors of Megatron-Core's modules do."""
    words = shlex.split(text.replace("(", "\n").replace(")", "\n"), comments=True)
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            flags[word] = []
        elif flags:
            flags[list(flags)[-1]].append(word)
    if not flags:
        return
    decoder: Any = model.get_submodule("gpt").decoder
    config = decoder.config
    config.recompute_granularity = flags["--recompute-granularity"][0]
    parts = flags.get("--recompute-modules", [])
    config.recompute_modules = parts
    if "--recompute-method" in flags:
        config.recompute_method = flags["--recompute-method"][0]
        config.recompute_num_layers = int(flags["--recompute-num-layers"][0])
    for layer in decoder.layers:
        layer.recompute_mlp = "mlp" in parts
        layer.recompute_input_layernorm = layer.recompute_pre_mlp_layernorm = (
            "layernorm" in parts
        )
        layer.self_attention.checkpoint_core_attention = "core_attn" in parts
        layer.mlp.moe_layer_recompute = "moe" in parts
        layer.mlp.shared_experts_recompute = "shared_experts" in parts
