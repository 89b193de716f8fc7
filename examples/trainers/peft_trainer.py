"""LoRA with PEFT and transformers' Trainer: the plan is for the model with its adapters,
of which only these are trained.

    python peft_trainer.py [--without]
"""

import pathlib
import sys
import tempfile

import peft
import torch
import transformers

import acplan.transformers

CONFIG = pathlib.Path(__file__).parents[1] / "tiny_llama.json"


def main() -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(CONFIG)
    base = transformers.AutoModelForCausalLM.from_config(config)
    lora = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    data = [{"input_ids": row, "labels": row} for row in torch.randint(256, (16, 128))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=4, max_steps=2, logging_steps=1,
            report_to="none", use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        model = peft.get_peft_model(base, lora)
        trainer = transformers.Trainer(model, arguments, train_dataset=data)
        if "--without" not in sys.argv:
            print(acplan.transformers.auto_checkpoint(trainer, budget="75%"))
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("losses", *losses)


if __name__ == "__main__":
    main()
