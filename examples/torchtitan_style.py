"""A training loop as torchtitan writes it: a model on the meta device, activation
checkpointing, torch.compile block by block, fully_shard, and then the weights.

    torchrun --nproc-per-node 2 torchtitan_style.py --budget 75% --compile
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import acplan


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads=4) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Embedding, nn.Linear, nn.LayerNorm)):
                module.reset_parameters()


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def plan_of(model: nn.Module, tokens: torch.Tensor, budget: str, rank: int) -> acplan.Plan:
    """Made by the first rank, and the same on all."""
    made: list[acplan.Plan | None] = [None]
    if rank == 0:

        def loss_of(logits: torch.Tensor) -> torch.Tensor:
            labels = torch.zeros(tokens.shape, dtype=torch.long, device=logits.device)
            return next_token_loss(logits, labels)

        traced = acplan.trace(model, tokens, loss_fn=loss_of)
        made[0] = acplan.plan(traced, budget=budget)
        print(made[0], flush=True)
    dist.broadcast_object_list(made)
    assert made[0] is not None
    return made[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", default="75%")
    parser.add_argument("--batch", type=int, default=8, help="of each rank")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    options = parser.parse_args()

    rank = int(os.environ["RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    with torch.device("meta"):
        model: nn.Module = Transformer(vocabulary=256, width=128, depth=4)
        sample = torch.zeros(options.batch, options.length, dtype=torch.long)
    model = acplan.apply(model, plan_of(model, sample, options.budget, rank))
    if options.compile:
        for layer in model.layers:
            layer.compile(backend=options.backend, fullgraph=True)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    torch.manual_seed(0)
    model.init_weights()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    shape = (options.batch, options.length)
    for step in range(options.steps):
        tokens = torch.randint(256, shape, generator=data).to(device)
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
