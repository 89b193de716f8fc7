"""The models of `python -m acplan gpu-check`: of real sizes, and small ones."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from acplan._base.errors import AcplanError

Inputs = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class CheckedModel:
    """A model to check. `inputs` returns keyword arguments, on the CPU, for the size of a
    batch."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    batch: int
    autocast: torch.dtype | None = None


def checked_models(is_small: bool) -> Mapping[str, Callable[[], CheckedModel]]:
    """Returns functions that make the models, by name. They raise an error if the model is one
    of transformers and that is missing."""
    return {
        "mlp": lambda: _mlp(is_small),
        "gpt2": lambda: _gpt2(is_small),
        "llama": lambda: _llama(is_small),
        "qwen3": lambda: _qwen3(is_small),
        "mixtral": lambda: _mixtral(is_small),
        "bert": lambda: _bert(is_small),
        "t5": lambda: _t5(is_small),
        "whisper": lambda: _whisper(is_small),
        "vit": lambda: _vit(is_small),
        "resnet50": lambda: _resnet(is_small),
        "unet": lambda: _unet(is_small),
        "encoder": lambda: _encoder(is_small),
        "lstm": lambda: _lstm(is_small),
    }


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise AcplanError(f"this model needs transformers: {error}") from None
    return transformers


def _ids(vocabulary: int, length: int, **others: Any) -> Callable[[int], Inputs]:
    """Returns a function that draws ids from a generator of its own, so that each run has the
    same."""

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(vocabulary, (batch, length), generator=generator)
        extra = {name: make(batch) for name, make in others.items()}
        return {"input_ids": ids, "labels": ids.clone(), **extra}

    return inputs


def _floats(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda batch: torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))


def _pictures(size: int, classes: int) -> Callable[[int], Inputs]:
    return lambda batch: {
        "pixel_values": _floats(3, size, size)(batch),
        "labels": torch.arange(batch) % classes,
    }


def _gpt2(is_small: bool) -> CheckedModel:
    hf = _transformers()
    size = {"n_layer": 2, "n_embd": 48, "n_head": 4, "vocab_size": 99}
    config = hf.GPT2Config(use_cache=False, **(size if is_small else {}))
    return CheckedModel(
        lambda: hf.GPT2LMHeadModel(config),
        _ids(config.vocab_size, 16 if is_small else 1024),
        2 if is_small else 8,
    )


def _llama(is_small: bool) -> CheckedModel:
    """Returns Llama 3.2 1B, in bfloat16."""
    hf = _transformers()
    config = hf.LlamaConfig(
        hidden_size=64 if is_small else 2048,
        intermediate_size=96 if is_small else 8192,
        num_hidden_layers=2 if is_small else 16,
        num_attention_heads=4 if is_small else 32,
        num_key_value_heads=2 if is_small else 8,
        vocab_size=99 if is_small else 128256,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return CheckedModel(
        lambda: hf.LlamaForCausalLM(config).to(torch.bfloat16),
        _ids(config.vocab_size, 16 if is_small else 2048),
        2 if is_small else 4,
    )


def _qwen3(is_small: bool) -> CheckedModel:
    """Returns Qwen3 0.6B, in float32 with autocast to bfloat16."""
    hf = _transformers()
    config = hf.Qwen3Config(
        hidden_size=64 if is_small else 1024,
        intermediate_size=96 if is_small else 3072,
        num_hidden_layers=2 if is_small else 28,
        num_attention_heads=4 if is_small else 16,
        num_key_value_heads=2 if is_small else 8,
        head_dim=16 if is_small else 128,
        vocab_size=99 if is_small else 151936,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return CheckedModel(
        lambda: hf.Qwen3ForCausalLM(config),
        _ids(config.vocab_size, 16 if is_small else 1024),
        2 if is_small else 4,
        torch.bfloat16,
    )


def _mixtral(is_small: bool) -> CheckedModel:
    hf = _transformers()
    config = hf.MixtralConfig(
        hidden_size=64 if is_small else 1024,
        intermediate_size=96 if is_small else 3584,
        num_hidden_layers=2 if is_small else 8,
        num_attention_heads=4 if is_small else 16,
        num_key_value_heads=2 if is_small else 8,
        num_local_experts=4 if is_small else 8,
        vocab_size=99 if is_small else 32000,
        use_cache=False,
    )
    return CheckedModel(
        lambda: hf.MixtralForCausalLM(config).to(torch.bfloat16),
        _ids(config.vocab_size, 16 if is_small else 1024),
        2 if is_small else 8,
    )


def _bert(is_small: bool) -> CheckedModel:
    """Returns BERT, with the mask of ones that a tokenizer returns."""
    hf = _transformers()
    size = {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 99,
    }
    config = hf.BertConfig(**(size if is_small else {}))
    length = 16 if is_small else 512
    return CheckedModel(
        lambda: hf.BertForMaskedLM(config),
        _ids(
            config.vocab_size,
            length,
            attention_mask=lambda batch: torch.ones(batch, length, dtype=torch.long),
        ),
        2 if is_small else 16,
        torch.bfloat16,
    )


def _t5(is_small: bool) -> CheckedModel:
    hf = _transformers()
    size = {
        "d_model": 48,
        "d_kv": 12,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 99,
    }
    config = hf.T5Config(
        use_cache=False, decoder_start_token_id=0, **(size if is_small else {})
    )
    return CheckedModel(
        lambda: hf.T5ForConditionalGeneration(config),
        _ids(config.vocab_size, 16 if is_small else 512),
        2 if is_small else 8,
    )


def _whisper(is_small: bool) -> CheckedModel:
    """Returns Whisper small, in bfloat16."""
    hf = _transformers()
    config = hf.WhisperConfig(
        d_model=48 if is_small else 768,
        encoder_layers=2 if is_small else 12,
        decoder_layers=2 if is_small else 12,
        encoder_attention_heads=4 if is_small else 12,
        decoder_attention_heads=4 if is_small else 12,
        encoder_ffn_dim=64 if is_small else 3072,
        decoder_ffn_dim=64 if is_small else 3072,
        max_source_positions=20 if is_small else 1500,
        use_cache=False,
    )
    dtype = torch.bfloat16
    length = config.max_source_positions * 2
    labels = _ids(config.vocab_size, 16 if is_small else 256)
    features = _floats(config.num_mel_bins, length)
    return CheckedModel(
        lambda: hf.WhisperForConditionalGeneration(config).to(dtype),
        lambda batch: {
            "input_features": features(batch).to(dtype),
            "labels": labels(batch)["labels"],
        },
        2 if is_small else 8,
    )


def _vit(is_small: bool) -> CheckedModel:
    hf = _transformers()
    size = {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "image_size": 32,
    }
    config = hf.ViTConfig(**(size if is_small else {}))
    return CheckedModel(
        lambda: hf.ViTForImageClassification(config),
        _pictures(config.image_size, config.num_labels),
        2 if is_small else 64,
        torch.bfloat16,
    )


def _resnet(is_small: bool) -> CheckedModel:
    hf = _transformers()
    size = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}
    config = hf.ResNetConfig(**(size if is_small else {}))
    return CheckedModel(
        lambda: hf.ResNetForImageClassification(config),
        _pictures(32 if is_small else 224, config.num_labels),
        2 if is_small else 64,
    )


class _WithLoss(nn.Module):
    """The mean square of the output of a model that maps x to something like x."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.body(x)
        out = out[0] if isinstance(out, tuple) else out
        return {"loss": out.float().square().mean()}


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + y


def _mlp(is_small: bool) -> CheckedModel:
    width, depth = (32, 3) if is_small else (1024, 24)
    return CheckedModel(
        lambda: _WithLoss(nn.Sequential(*(_Block(width) for _ in range(depth)))),
        lambda batch: {"x": _floats(width)(batch)},
        64 if is_small else 32768,
    )


def _encoder(is_small: bool) -> CheckedModel:
    """Returns PyTorch's own transformer."""
    width, depth, length = (32, 2, 16) if is_small else (768, 12, 512)

    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(
            width, 4 if is_small else 12, 4 * width, batch_first=True
        )
        stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        return _WithLoss(stack)

    return CheckedModel(
        make, lambda batch: {"x": _floats(length, width)(batch)}, 2 if is_small else 16
    )


def _lstm(is_small: bool) -> CheckedModel:
    width, length = (16, 8) if is_small else (1024, 256)
    return CheckedModel(
        lambda: _WithLoss(nn.LSTM(width, width, 2 if is_small else 4)),
        lambda batch: {"x": _floats(batch, width)(length)},
        2 if is_small else 64,
    )


class _Residual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, n) for n in (before, after)])
        self.convs = nn.ModuleList([nn.Conv2d(n, after, 3, padding=1) for n in (before, after)])
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for norm, conv in zip(self.norms, self.convs):
            y = conv(nn.functional.silu(norm(y)))
        shortcut: torch.Tensor = self.skip(x)
        return shortcut + y


class _UNet(nn.Module):
    """A U-Net of three levels, as in diffusion models, with attention at the lowest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        pairs = list(zip([width, *widths], widths))
        self.down = nn.ModuleList([_Residual(a, b) for a, b in pairs])
        self.attention = nn.MultiheadAttention(widths[-1], 4, batch_first=True)
        self.up = nn.ModuleList([_Residual(2 * b, a) for a, b in reversed(pairs)])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, outputs = self.first(x), []
        for block in self.down:
            y = block(y)
            outputs.append(y)
            y = nn.functional.avg_pool2d(y, 2)
        rows = y.flatten(2).transpose(1, 2)
        attended, _ = self.attention(rows, rows, rows, need_weights=False)
        y = y + attended.transpose(1, 2).reshape(y.shape)
        for block in self.up:
            y = nn.functional.interpolate(y, scale_factor=2.0)
            y = block(torch.cat([y, outputs.pop()], 1))
        out: torch.Tensor = self.last(y)
        return out


def _unet(is_small: bool) -> CheckedModel:
    width, size = (8, 16) if is_small else (128, 128)
    return CheckedModel(
        lambda: _WithLoss(_UNet(width)),
        lambda batch: {"x": _floats(3, size, size)(batch)},
        2 if is_small else 16,
    )
