"""Lightning within a budget: a callback.

python lightning_module.py [--without]
"""

import sys

import lightning
import torch
from torch import nn

from acplan.lightning import AcplanCallback


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(4))
        self.blocks = nn.Sequential(*blocks)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss = (self.blocks(batch) - batch.roll(1, dims=1)).square().mean()
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: dict[str, torch.Tensor], *_: object) -> None:
        print("losses", outputs["loss"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    torch.manual_seed(0)
    callbacks = [] if "--without" in sys.argv else [AcplanCallback(budget="80%")]
    trainer = lightning.Trainer(
        max_epochs=1, precision="bf16-mixed", callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(16, 128, 64), 8))
