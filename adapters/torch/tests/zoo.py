"""Small models of many kinds, and plans for them."""

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import nn

from acplan import Plan, PlannedModule, PlannedOperator, Trace


@dataclasses.dataclass(frozen=True)
class Example:
    """A model, on the meta device unless asked otherwise, its inputs, and the
    modules that one would checkpoint, as paths."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    blocks: tuple[str, ...]
    parts: tuple[str, ...]

    def on_meta(self) -> tuple[nn.Module, dict[str, Any]]:
        with torch.device("meta"):
            return self.make(), self.inputs()


def whole_blocks(model: nn.Module) -> tuple[PlannedModule, ...]:
    """Returns the children of lists of modules that are in no other list, each as a unit that
    is recomputed as a whole."""
    lists = [n for n, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    outer = [n for n in lists if not any(n.startswith(f"{other}.") for other in lists)]
    root = type(model).__name__
    return tuple(
        PlannedModule(f"{root}.{name}.{child}")
        for name in outer
        for child, _ in model.get_submodule(name).named_children()
    )


def tokens(batch: int, length: int, vocabulary: int) -> Callable[[], dict[str, Any]]:
    def inputs() -> dict[str, Any]:
        tokens = torch.randint(0, vocabulary, (batch, length))
        return {"input_ids": tokens, "labels": tokens}

    return inputs


def images(batch: int, size: int) -> Callable[[], dict[str, Any]]:
    def inputs() -> dict[str, Any]:
        return {
            "pixel_values": torch.randn(batch, 3, size, size),
            "labels": torch.randint(0, 10, (batch,)),
        }

    return inputs


def transformer(
    name: str, *, dtype: torch.dtype | None = None, experts: str = "", **options: Any
) -> Callable[[], nn.Module]:
    """Returns what makes a model of a class of transformers, with options of its
    configuration and a way to run its experts."""

    def make() -> nn.Module:
        model_class = getattr(transformers, name)
        config = model_class.config_class(**options)
        if experts:
            config._experts_implementation = experts
        model: nn.Module = model_class(config)
        return model if dtype is None else model.to(dtype)

    return make


def llama_1b() -> nn.Module:
    """Returns a Llama with a billion parameters, as Llama-3.2-1B has them."""
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def example_of(
    make: Callable[[], nn.Module],
    inputs: Callable[[], dict[str, Any]],
    kind: str,
    *parts: str,
) -> Callable[[], Example]:
    """Returns what makes an example, whose blocks are the modules of a class, by its name."""

    def example() -> Example:
        with torch.device("meta"):
            modules = make().named_modules()
            blocks = tuple(name for name, m in modules if type(m).__name__ == kind)
        return Example(make, inputs, blocks, tuple(f"{b}.{p}" for b in blocks for p in parts))

    return example


class _Shared(nn.Module):
    """One block, called three times; frozen embeddings; dropout; a mask that is a
    keyword argument; a part whose output needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64).requires_grad_(False)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.block = _Block()
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = (tokens > 0).unsqueeze(-1)
        x = self.frozen(self.embedding(tokens))
        for _ in range(3):
            x = self.block(x, mask=mask)
        return self.head(x).float().logsumexp(-1).mean()


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.relu(self.up(x), inplace=True)
        return x + self.dropout(self.down(hidden)) * mask


class _Noted(nn.Module):
    """Frozen layers without gradients, a layer that needs none, and layers that keep a
    tensor of theirs as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.ModuleList(_Noting() for _ in range(2)).requires_grad_(False)
        self.untrained = _Noting().requires_grad_(False)
        self.layers = nn.ModuleList(_Noting() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for layer in self.frozen:
                x = layer(x)
        x = self.untrained(x)
        for layer in self.layers:
            x = layer(x)
        return x.mean() + sum(layer.noted.mean() for layer in self.layers)


class _Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x).tanh()
        self.noted = hidden
        return x + self.down(hidden)


class _Writing(nn.Module):
    """Blocks that write in place, into views too, take and return dictionaries, and
    compute what nobody needs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_WritingBlock() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((32,), 2.0, device=x.device)
        state: dict[str, torch.Tensor] | None = None
        for block in self.blocks:
            result = block(x, state, scale=scale)
            y = result["out"]
            y += 1
            state = {"size": result["size"]}
            x = x + y.mul_(0.5)
        return x.logsumexp(1).mean()


class _WritingBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(32, 32)

    def forward(
        self,
        x: torch.Tensor,
        state: dict[str, torch.Tensor] | None,
        *,
        scale: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            size = x.pow(2).mean(-1, keepdim=True)
            size += 1
        a, b = self.up(x).chunk(2, -1)
        a.exp().sin()
        a = nn.functional.relu(a) * 1.0
        a.mul_(scale)
        b = b.sigmoid() * a
        b.add_(1.0)
        out = self.down(b).add_(1)
        if state is not None:
            out = out + state["size"] * 0.1
        return {"out": out, "size": size, "largest": out.argmax(-1)}


def _transformer() -> Example:
    from torch.testing._internal.distributed._tensor.common_dtensor import (
        ModelArgs,
        Transformer,
    )

    arguments = ModelArgs(
        n_layers=3, vocab_size=100, max_seq_len=64, dim=64, n_heads=4, dropout_p=0.1
    )
    blocks = tuple(f"layers.{k}" for k in range(3))
    return Example(
        lambda: Transformer(arguments),
        lambda: {"tokens": torch.randint(0, 100, (4, 64))},
        blocks,
        tuple(f"{b}.{part}" for b in blocks for part in ("attention", "feed_forward")),
    )


class _UNet(nn.Module):
    """Skip connections across units, in-place activations, batch norm."""

    def __init__(self) -> None:
        super().__init__()

        def stage(inner: int, outer: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inner, outer, 3, padding=1),
                nn.BatchNorm2d(outer),
                nn.ReLU(inplace=True),
                nn.Conv2d(outer, outer, 3, padding=1),
                nn.SiLU(),
            )

        self.down = nn.ModuleList([stage(3, 8), stage(8, 16), stage(16, 32)])
        self.up = nn.ModuleList([stage(48, 16), stage(24, 8)])
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2) if len(skips) < 3 else x
        skips.pop()
        for stage in self.up:
            x = nn.functional.interpolate(x, scale_factor=2)
            x = stage(torch.cat([x, skips.pop()], 1))
        return self.head(x).square().mean()


class _Cubed(torch.autograd.Function):
    """Saves one tensor as autograd wants it, and keeps another one by itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.squared = x * x
        return ctx.squared * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * (ctx.squared + 0 * x)


class _Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_CubedLayer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)["hidden"]
        return {"loss": x.mean(), "hidden": x}


class _CubedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.down(_Cubed.apply(self.up(x)))
        return {"hidden": x + hidden, "unused": hidden.exp()}


EXAMPLES: dict[str, Callable[[], Example]] = {
    "gpt2": example_of(
        transformer(
            "GPT2LMHeadModel", n_layer=4, n_embd=128, n_head=4, vocab_size=500, use_cache=False
        ),
        tokens(2, 64, 500),
        "GPT2Block", "attn", "mlp",
    ),
    "llama": example_of(
        transformer(
            "LlamaForCausalLM", dtype=torch.bfloat16, num_hidden_layers=3, hidden_size=128,
            intermediate_size=352, num_attention_heads=8, num_key_value_heads=2,
            vocab_size=500, use_cache=False,
        ),
        tokens(2, 64, 500),
        "LlamaDecoderLayer", "self_attn", "mlp",
    ),
    "bert": example_of(
        transformer(
            "BertForMaskedLM", num_hidden_layers=3, hidden_size=128, num_attention_heads=4,
            intermediate_size=512, vocab_size=500,
        ),
        tokens(2, 64, 500),
        "BertLayer", "attention", "intermediate",
    ),
    "t5": example_of(
        transformer(
            "T5ForConditionalGeneration", num_layers=2, num_decoder_layers=2, d_model=128,
            d_kv=32, d_ff=512, num_heads=4, vocab_size=500, use_cache=False,
            decoder_start_token_id=0,
        ),
        tokens(2, 64, 500),
        "T5Block", "layer.0",
    ),
    "vit": example_of(
        transformer(
            "ViTForImageClassification", num_hidden_layers=3, hidden_size=64,
            num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
            num_labels=10, hidden_dropout_prob=0.1,
        ),
        images(2, 32),
        "ViTLayer", "attention",
    ),
    "resnet": example_of(
        transformer(
            "ResNetForImageClassification", embedding_size=16, hidden_sizes=[16, 32],
            depths=[2, 2], layer_type="basic", num_labels=10,
        ),
        images(2, 32),
        "ResNetStage", "layers.0", "layers.1",
    ),
    "unet": lambda: Example(
        _UNet,
        lambda: {"x": torch.randn(2, 3, 16, 16)},
        ("down.0", "down.1", "down.2", "up.0", "up.1"),
        ("down.0.0", "down.1.3", "up.0.1"),
    ),
    "custom": lambda: Example(
        _Custom,
        lambda: {"x": torch.randn(4, 32)},
        tuple(f"layers.{k}" for k in range(3)),
        tuple(f"layers.{k}.up" for k in range(3)),
    ),
    "noted": lambda: Example(
        _Noted,
        lambda: {"x": torch.randn(4, 32)},
        ("frozen.0", "frozen.1", "untrained", *(f"layers.{k}" for k in range(3))),
        ("layers.0.up", "layers.1.down"),
    ),
    "writing": lambda: Example(
        _Writing,
        lambda: {"x": torch.randn(4, 32)},
        tuple(f"blocks.{k}" for k in range(3)),
        ("blocks.0.up", "blocks.1.down"),
    ),
    "transformer": _transformer,
    "mixtral": example_of(
        transformer(
            "MixtralForCausalLM", experts="batched_mm",  # one whose shapes are known
            num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, vocab_size=100, use_cache=False,
            output_router_logits=True,
        ),
        tokens(2, 32, 100),
        "MixtralDecoderLayer", "self_attn", "mlp",
    ),
    "swin": example_of(
        transformer(
            "SwinForImageClassification", image_size=32, patch_size=2, window_size=4,
            embed_dim=16, depths=[2, 2], num_heads=[2, 4], hidden_dropout_prob=0.1,
            drop_path_rate=0.1, num_labels=10,
        ),
        images(2, 32),
        "SwinLayer", "attention",
    ),
    "shared": lambda: Example(
        _Shared,
        lambda: {"tokens": torch.randint(0, 100, (4, 32))},
        ("block",),
        ("block.up", "block.down"),
    ),
}  # fmt: skip

_WORTH_SAVING = ("mm.", "bmm.", "norm.", "softmax.", "gelu.", "silu.", "attention")


def plans(example: Example, trace: Trace, seeds: int = 2) -> Iterator[tuple[str, Plan]]:
    """Yields plans: all blocks, every second, parts, both, parts inside blocks, and policies by
    chance."""
    root = trace.data["modules"][0]["fqn"]

    def whole(*paths: str) -> Plan:
        return Plan(tuple(PlannedModule(f"{root}.{path}") for path in paths))

    def by_chance(chance: random.Random, *paths: str) -> Plan:
        every = chance.random() < 0.5
        return Plan(
            tuple(
                PlannedModule(f"{root}.{path}", _policy(trace, f"{root}.{path}", chance, every))
                for path in paths
            )
        )

    blocks, parts = example.blocks, example.parts
    yield "all blocks", whole(*blocks)
    yield "every second block", whole(*blocks[::2])
    yield "the last block", whole(blocks[-1])
    yield "parts", whole(*parts)
    yield "parts inside blocks", whole(*blocks, *parts)
    if len(blocks) > 1:
        of_others = [p for p in parts if not p.startswith(f"{blocks[0]}.")]
        yield "a block and parts of others", whole(blocks[0], *of_others)
    yield (
        "all in one, and what is inside",
        whole(*_enclosing_module(blocks), *blocks[1:], *parts),
    )
    for seed in range(seeds):
        chance = random.Random(seed)
        yield f"policies by chance, {seed}", by_chance(chance, *blocks)
        yield f"by chance and inside, {seed}", by_chance(chance, *blocks, *parts)


def _enclosing_module(blocks: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the module around the first block, if that module is called."""
    path = blocks[0].rpartition(".")[0]
    if path.endswith((".h", ".layers", ".layer", ".block", ".blocks", ".stages")):
        path = path.rpartition(".")[0]
    containers = ("", "down", "layers", "frozen", "blocks")
    return () if path in containers else (path,)


def _policy(
    trace: Trace, fqn: str, chance: random.Random, every: bool
) -> tuple[PlannedOperator, ...]:
    """Saves about half of the operators, of `every` kind (views among them) or of
    those worth it, but none whose result is written to."""
    data = trace.data
    names = [module["fqn"] for module in data["modules"]]
    call = next(c for c in data["calls"] if names[c["module"]] == fqn)
    operators = data["operators"][call["start"] : call["end"]]
    mutated = {s for op in data["operators"] for s in op.get("mutates", ())}
    return tuple(
        PlannedOperator(
            operator["name"],
            (every or any(name in operator["name"] for name in _WORTH_SAVING))
            and not mutated & {*operator["outputs"], *operator.get("mutates", ())}
            and chance.random() < 0.5,
        )
        for operator in operators
    )
