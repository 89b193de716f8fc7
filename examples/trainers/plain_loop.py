"""A loop of one's own, with torch.compile: plan, compile, train.

python plain_loop.py [--without] [--compile]
"""

import sys

import torch
from torch import nn

import acplan


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def block() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[block() for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if "--without" not in sys.argv:
        model = acplan.auto_checkpoint(
            model, torch.zeros(4096, 128), optimizer=optimizer, budget="75%", loss_fn=loss_of
        )
    if "--compile" in sys.argv:
        model.compile(backend="aot_eager")
    for batch in torch.randn(2, 4096, 128):
        loss = loss_of(model(batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("losses", loss.item())


if __name__ == "__main__":
    main()
