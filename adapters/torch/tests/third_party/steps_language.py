"""Training steps of language models and other sequences of many packages."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, classes, entry, words
from third_party.small_models import causal, small_llama


@entry("litgpt", "litgpt.model")
def pythia_and_chunked_cross_entropy() -> TrainingStep:
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    model = GPT(Config(block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=32))
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: chunked_cross_entropy(m(x)[:, :-1], x[:, 1:], chunk_size=8),
    )


@entry("litgpt", "litgpt.lora")
def llama_with_lora() -> TrainingStep:
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable

    model = GPT(
        Config(
            block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=32, lora_r=4,
            lora_alpha=8, lora_dropout=0.1, lora_query=True, lora_value=True,
            norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=64,
        )
    )  # fmt: skip
    mark_only_lora_as_trainable(model)
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()),
    )


@entry("litgpt", "litgpt.model")
def mixture_of_experts() -> TrainingStep:
    from litgpt import GPT, Config

    model = GPT(
        Config(
            block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=32,
            mlp_class_name="LLaMAMoE", norm_class_name="RMSNorm", intermediate_size=64,
            n_expert=4, n_expert_per_token=2,
        )
    )  # fmt: skip
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()),
    )


def _with_nf4() -> None:
    """Has torchao's module of 4 bits under the name by which torchtune imports it."""
    sys.modules["torchao.dtypes.nf4tensor"] = importlib.import_module(
        "torchao.quantization.quantize_.workflows.nf4.nf4_tensor"
    )


def _tune(model: nn.Module) -> TrainingStep:
    from torchtune.modules.loss import CEWithChunkedOutputLoss

    chunked = CEWithChunkedOutputLoss(num_output_chunks=4)
    model.set_num_output_chunks(4)
    tokens = words()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return chunked(model(x), F.pad(x[:, 1:], (0, 1), value=-100))

    return TrainingStep(model, (tokens,), forward_fn=loss)


@entry("torchtune", "torchao.quantization")
def llama_and_chunked_loss() -> TrainingStep:
    _with_nf4()
    from torchtune.models.llama3_2 import llama3_2

    return _tune(
        llama3_2(
            vocab_size=64, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32,
            max_seq_len=64, intermediate_dim=64,
        )
    )  # fmt: skip


@entry("torchtune", "torchao.quantization")
def qlora_of_llama() -> TrainingStep:
    _with_nf4()
    from torchtune.models.llama3 import lora_llama3
    from torchtune.modules.peft import get_adapter_params, set_trainable_params

    model = lora_llama3(
        ["q_proj", "v_proj"], apply_lora_to_mlp=True, vocab_size=64, num_layers=2,
        num_heads=4, num_kv_heads=2, embed_dim=64, max_seq_len=64, intermediate_dim=128,
        lora_rank=4, lora_alpha=8, lora_dropout=0.1,
    )  # fmt: skip
    set_trainable_params(model, get_adapter_params(model))
    return _tune(model)


@entry("torchtitan", "torchtitan.models.flux")
def double_stream_blocks_of_flux() -> TrainingStep:
    from torchtitan.models import flux
    from torchtitan.models.flux.model.layers import EmbedND

    config = flux._make_double_block_config(64, 4, 2.0, True)
    blocks = nn.ModuleList([config.build(), config.build()])
    for weight in blocks.parameters():
        nn.init.normal_(weight, std=0.1)
    places = EmbedND.Config(dim=16, theta=10_000, axes_dim=(4, 6, 6)).build()

    def loss(blocks: Any, image: Tensor, text: Tensor, vec: Tensor, ids: Tensor) -> Tensor:
        pe = places(ids)
        for block in blocks:
            image, text = block(img=image, txt=text, vec=vec, pe=pe)
        return image.square().mean() + text.square().mean()

    return TrainingStep(
        blocks,
        (
            torch.randn(1, 16, 64),
            torch.randn(1, 8, 64),
            torch.randn(1, 64),
            torch.arange(24.0).view(1, 24, 1).expand(1, 24, 3),
        ),
        forward_fn=loss,
    )


@entry("mambapy", "mambapy.mamba")
def mamba_language_model() -> TrainingStep:
    from mambapy.mamba import Mamba, MambaConfig

    body = Mamba(MambaConfig(d_model=16, n_layers=2))
    model = nn.Sequential(nn.Embedding(64, 16), body, nn.Linear(16, 64))
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()),
    )


@entry("openai-whisper", "whisper.model")
def whisper() -> TrainingStep:
    from whisper.model import ModelDimensions, Whisper

    model = Whisper(ModelDimensions(16, 32, 32, 2, 2, 64, 16, 32, 2, 2))
    for weight in model.parameters():  # The package leaves some as memory has them.
        nn.init.normal_(weight, std=0.1)
    tokens = words()
    return TrainingStep(
        model,
        (torch.randn(2, 16, 64), tokens),
        forward_fn=lambda m, x, t: F.cross_entropy(m(x, t).flatten(0, 1), t.flatten()),
    )


def _x_transformers(make: Callable[[Any], nn.Module]) -> TrainingStep:
    import x_transformers

    return TrainingStep(
        make(x_transformers), (words(2, 17),), loss_fn=lambda out: getattr(out, "loss", out)
    )


def _decoder(x: Any, **options: Any) -> nn.Module:
    layers = x.Decoder(dim=32, depth=2, heads=2, **options)
    body = x.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)
    return x.AutoregressiveWrapper(body)


for _name, _options in {
    "decoder": {},
    "decoder with rotary, flash, GLU": {
        "rotary_pos_emb": True, "attn_flash": True, "ff_glu": True, "use_rmsnorm": True
    },
    "decoder with ALiBi and talking heads": {
        "alibi_pos_bias": True, "attn_pre_talking_heads": True
    },
    "decoder with dropped layers and sandwich norm": {
        "layer_dropout": 0.2, "sandwich_norm": True, "attn_dropout": 0.1
    },
    "decoder with macaron and gated values": {"macaron": True, "attn_gate_values": True},
    "decoder with hyper connections": {"num_residual_streams": 2},
}.items():  # fmt: skip
    add(
        "x-transformers",
        _name,
        lambda options=_options: _x_transformers(lambda x: _decoder(x, **options)),
    )


@entry("x-transformers")
def encoder_and_decoder() -> TrainingStep:
    import x_transformers

    model = x_transformers.XTransformer(
        dim=32, enc_num_tokens=64, enc_depth=2, enc_heads=2, enc_max_seq_len=16,
        dec_num_tokens=64, dec_depth=2, dec_heads=2, dec_max_seq_len=16,
    )  # fmt: skip
    return TrainingStep(
        model,
        (words(), words()),
        {"mask": torch.ones(2, 16, dtype=torch.bool)},
        loss_fn=lambda loss: loss,
    )


@entry("x-transformers")
def non_autoregressive() -> TrainingStep:
    return _x_transformers(
        lambda x: x.NonAutoregressiveWrapper(
            x.TransformerWrapper(
                num_tokens=65, max_seq_len=17, logits_dim=64,
                attn_layers=x.Encoder(dim=32, depth=2, heads=2),
            ),
            mask_id=64,
        )
    )  # fmt: skip


@entry("titans-pytorch")
def memory_as_context() -> TrainingStep:
    from titans_pytorch import MemoryAsContextTransformer

    model = MemoryAsContextTransformer(
        num_tokens=64, dim=16, depth=2, segment_len=8, num_persist_mem_tokens=2,
        num_longterm_mem_tokens=2, dim_head=8, heads=2,
    )  # fmt: skip
    return TrainingStep(
        model, (words(1, 17),), {"return_loss": True}, loss_fn=lambda loss: loss
    )


@entry("soft-moe-pytorch")
def soft_mixture_of_experts() -> TrainingStep:
    from soft_moe_pytorch import SoftMoE

    return TrainingStep(SoftMoE(dim=32, seq_len=16, num_experts=4), (torch.randn(2, 16, 32),))


@entry("performer-pytorch")
def performer() -> TrainingStep:
    from performer_pytorch import AutoregressiveWrapper, PerformerLM

    model = AutoregressiveWrapper(
        PerformerLM(num_tokens=64, max_seq_len=16, dim=32, depth=2, heads=2, causal=False)
    )
    return TrainingStep(
        model, (words(2, 17),), {"return_loss": True}, loss_fn=lambda loss: loss
    )


@entry("reformer-pytorch")
def reformer() -> TrainingStep:
    from reformer_pytorch import ReformerLM

    model = ReformerLM(
        num_tokens=64, dim=32, depth=2, max_seq_len=32, heads=2, bucket_size=8, n_hashes=2,
        causal=True, lsh_dropout=0.1,
    )  # fmt: skip
    tokens = words(2, 32)
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
    )


@entry("linear-attention-transformer")
def linear_attention() -> TrainingStep:
    from linear_attention_transformer import LinearAttentionTransformerLM

    model = LinearAttentionTransformerLM(
        num_tokens=64, dim=32, heads=2, depth=2, max_seq_len=16, causal=False, blindspot_size=1
    )
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
    )


@entry("perceiver-pytorch")
def perceiver() -> TrainingStep:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3, input_axis=2, num_freq_bands=4, max_freq=10.0, depth=2,
        num_latents=8, latent_dim=32, num_classes=10, cross_dim_head=8, latent_dim_head=8,
        latent_heads=2, weight_tie_layers=True,
    )  # fmt: skip
    return TrainingStep(
        model,
        (torch.rand(2, 16, 16, 3), classes()),
        forward_fn=lambda m, x, y: F.cross_entropy(m(x), y),
    )


@entry("lion-pytorch")
def lion_with_a_small_transformer() -> TrainingStep:
    from lion_pytorch import Lion

    step = causal(small_llama())
    return TrainingStep(step.model, kwargs=step.kwargs, optimizer=Lion(step.model.parameters()))


@entry("fairscale", "fairscale.nn")
def checkpoint_wrappers() -> TrainingStep:
    from fairscale.nn import checkpoint_wrapper

    model = nn.Sequential(
        nn.Linear(32, 32),
        *(
            checkpoint_wrapper(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)))
            for _ in range(3)
        ),
    )
    return TrainingStep(model, (torch.randn(8, 32),))
