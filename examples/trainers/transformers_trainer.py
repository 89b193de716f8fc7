"""transformers' Trainer within a budget: one line between the trainer and its training.

python transformers_trainer.py [--without]
"""

import pathlib
import sys
import tempfile

import torch
import transformers

import acplan.transformers

CONFIG = pathlib.Path(__file__).parents[1] / "tiny_llama.json"


def samples(count: int, length: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(256, (count, length))
    return [{"input_ids": row, "labels": row} for row in tokens]


def main() -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(CONFIG)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, bf16=True,
            max_steps=2, logging_steps=1, report_to="none",
            use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=samples(16, 128))
        if "--without" not in sys.argv:
            print(acplan.transformers.auto_checkpoint(trainer, budget="75%"))
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("losses", *losses)


if __name__ == "__main__":
    main()
