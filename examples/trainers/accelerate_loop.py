"""A loop with accelerate: the plan comes before `accelerator.prepare`.

python accelerate_loop.py [--without]
torchrun --nproc-per-node 2 accelerate_loop.py
"""

import pathlib
import sys

import accelerate
import torch
import transformers

import acplan.accelerate

CONFIG = pathlib.Path(__file__).parents[1] / "tiny_llama.json"


def main() -> None:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=not torch.cuda.is_available(), mixed_precision="bf16"
    )
    config = transformers.AutoConfig.from_pretrained(CONFIG)
    model = transformers.AutoModelForCausalLM.from_config(config)
    tokens = torch.randint(256, (4, 128))
    if "--without" not in sys.argv:
        batch = {"input_ids": tokens, "labels": tokens}
        plan = acplan.accelerate.auto_checkpoint(accelerator, model, budget="80%", **batch)
        accelerator.print(plan)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    tokens = tokens.to(accelerator.device)
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print("losses", loss.item())


if __name__ == "__main__":
    main()
