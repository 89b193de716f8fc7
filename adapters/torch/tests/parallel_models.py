"""Small models and the ways in which they are parallel."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import acplan

WIDTH = 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            project(x).unflatten(-1, (-1, 8)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        ]
        weights = (heads[0] @ heads[1].mT / 8**0.5).softmax(-1)
        return self.o((weights @ heads[2]).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # 7 ranks have uneven shares of these.
        self.a, self.b = nn.Linear(WIDTH, 60), nn.Linear(60, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.gelu(self.a(x)))


class Dropout(nn.Module):
    """Dropout of operators that every device runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand_like(x) >= 0.1) / 0.9


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()
        self.dropout = Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Net(nn.Module):
    def __init__(self, vocabulary: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


Function = Callable[[nn.Module, DeviceMesh], None]


def sharded(*dimensions: str, prefetched: int = 0, **options: Any) -> Function:
    """Returns a function that shards every block, and the rest with the root."""

    def shard(model: nn.Module, mesh: DeviceMesh) -> None:
        part = mesh[dimensions] if len(dimensions) > 1 else mesh[dimensions[0]]
        blocks = [*model.get_submodule("blocks").children()]
        for module in (*blocks, model):
            fully_shard(module, mesh=part, **options)
        for place, block in enumerate(blocks if prefetched else ()):
            block.set_modules_to_forward_prefetch(blocks[place + 1 :][:prefetched])
            block.set_modules_to_backward_prefetch(blocks[:place][::-1][:prefetched])

    return shard


def synchronised_last(microbatch: acplan.Microbatch) -> None:
    """Lets gradients of microbatches be added up before they are reduced."""
    microbatch.model.set_requires_gradient_sync(microbatch.is_last)


def tensor_parallel(sequence: bool = True, loss: bool = False, mlp: bool = True) -> Function:
    """Returns a function that splits products over the dimension "tp"; between them the
    sequence is split if `sequence`. `loss`: logits stay split."""

    def split(model: nn.Module, mesh: DeviceMesh) -> None:
        tp = mesh["tp"]
        between = Shard(1) if sequence else Replicate()
        norm = {"norm": SequenceParallel()} if sequence else {}
        layouts: Any = Shard(-1) if loss else Replicate()
        of_model: dict[str, Any] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(
                input_layouts=between, output_layouts=layouts, use_local_output=not loss
            ),
        }
        # A stage of a pipeline may lack some of these.
        parts = {
            name: style
            for name, style in (of_model | norm).items()
            if not isinstance(getattr(model, name, nn.Identity()), nn.Identity)
        }
        parallelize_module(model, tp, parts)
        columns = ["attention.q", "attention.k", "attention.v", *(["mlp.a"] if mlp else [])]
        of_block: dict[str, Any] = dict.fromkeys(columns, ColwiseParallel())
        for name in ("attention.o", *(["mlp.b"] if mlp else [])):
            of_block[name] = RowwiseParallel(output_layouts=between)
        if sequence:
            gathered = PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(Replicate(),)
            )
            of_block |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
            of_block |= {"attention": gathered, "mlp": gathered}
        for block in model.get_submodule("blocks").children():
            parallelize_module(block, tp, of_block)

    return split


@dataclasses.dataclass(frozen=True)
class Case:
    """A mesh, how the model is parallel on it, and further options of a trace."""

    name: str
    mesh: dict[str, int]
    functions: Sequence[Function]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    vocabulary: int = 52
    tied: bool = False
    loss_is_split: bool = False
    make_net: Callable[[], nn.Module] | None = None
    length: int = 16

    def __str__(self) -> str:
        return self.name

    def make(self) -> nn.Module:
        return self.make_net() if self.make_net else Net(self.vocabulary, self.tied)

    def make_on_meta(self) -> nn.Module:
        with torch.device("meta"):
            return self.make()

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "mesh": self.mesh,
            "parallelize": self.functions,
            "forward_fn": loss_of,
            **self.options,
        }


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, foreach=False)


MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PINNED: dict[str, Any] = {"offload_policy": CPUOffloadPolicy()}
NOT_PINNED: dict[str, Any] = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}

CASES = [
    Case("fsdp", {"dp": 4}, [sharded("dp")]),
    Case("uneven", {"dp": 7}, [sharded("dp")]),
    Case("uneven, tied", {"dp": 7}, [sharded("dp")], tied=True),
    Case("the last rank", {"dp": 7}, [sharded("dp")], {"rank": 6}),
    Case("kept", {"dp": 4}, [sharded("dp", reshard_after_forward=False)]),
    Case("resharded to 2", {"dp": 4}, [sharded("dp", reshard_after_forward=2)]),
    Case("bfloat16", {"dp": 4}, [sharded("dp", mp_policy=MIXED)]),
    Case(
        "bfloat16, output float32",
        {"dp": 4},
        [
            sharded(
                "dp",
                mp_policy=MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32),
            )
        ],
    ),
    Case("hsdp", {"replicate": 2, "dp": 4}, [sharded("replicate", "dp")]),
    Case(
        "hsdp, bfloat16",
        {"replicate": 2, "dp": 4},
        [sharded("replicate", "dp", mp_policy=MIXED)],
    ),
    Case("prefetched", {"dp": 4}, [sharded("dp", prefetched=2)]),
    Case("accumulated", {"dp": 4}, [sharded("dp")], {"accumulate": 2}),
    Case(
        "synchronised last",
        {"dp": 4},
        [sharded("dp")],
        {"accumulate": 3, "microbatch_context": synchronised_last},
    ),
    Case("clipped", {"dp": 4}, [sharded("dp")], {"clip_grad_norm": 1.0}),
    Case("one rank", {"dp": 1}, [sharded("dp")]),
    # PyTorch's lists of tensors take no plain tensors beside DTensors.
    Case("tp", {"tp": 2}, [tensor_parallel(sequence=False)], {"optimizer": adamw}),
    Case("tp, sequence", {"tp": 2}, [tensor_parallel()]),
    Case("tp, sequence, loss", {"tp": 2}, [tensor_parallel(loss=True)], loss_is_split=True),
    Case("fsdp x tp", {"dp": 2, "tp": 2}, [tensor_parallel(), sharded("dp")]),
    Case(
        "fsdp x tp, bfloat16",
        {"dp": 2, "tp": 2},
        [tensor_parallel(), sharded("dp", mp_policy=MIXED)],
    ),
    Case(
        "hsdp x tp",
        {"replicate": 2, "dp": 2, "tp": 2},
        [tensor_parallel(), sharded("replicate", "dp")],
    ),
    Case("on the host", {"dp": 4}, [sharded("dp", **PINNED)]),
    Case("on the host, not pinned", {"dp": 4}, [sharded("dp", **NOT_PINNED)]),
    Case(
        "on the host, uneven, kept",
        {"dp": 7},
        [sharded("dp", reshard_after_forward=False, **PINNED)],
        {"rank": 6},
    ),
    Case(
        "on the host, resharded to 2, not pinned",
        {"dp": 4},
        [sharded("dp", reshard_after_forward=2, **NOT_PINNED)],
    ),
    Case(
        "on the host, hsdp, bfloat16",
        {"replicate": 2, "dp": 4},
        [sharded("replicate", "dp", mp_policy=MIXED, **PINNED)],
    ),
    Case("on the host, prefetched", {"dp": 4}, [sharded("dp", prefetched=2, **PINNED)]),
    Case(
        "on the host, accumulated, clipped",
        {"dp": 4},
        [sharded("dp", **PINNED)],
        {"accumulate": 2, "clip_grad_norm": 1.0},
    ),
    Case(
        "on the host, synchronised last",
        {"dp": 4},
        [sharded("dp", **PINNED)],
        {"accumulate": 3, "microbatch_context": synchronised_last},
    ),
    Case(
        "on the host, fused update",
        {"dp": 4},
        [sharded("dp", **PINNED)],
        {"optimizer": "adamw-fused"},
    ),
    Case("on the host, one rank", {"dp": 1}, [sharded("dp", **PINNED)]),
    Case(
        "on the host, fsdp x tp",
        {"dp": 2, "tp": 2},
        [tensor_parallel(), sharded("dp", **PINNED)],
    ),
]
