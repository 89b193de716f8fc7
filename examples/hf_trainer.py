"""Trains a language model of Hugging Face with their Trainer, on random tokens, within
a memory budget.

    python hf_trainer.py --config config.json --budget 60GiB
"""

import argparse
import pathlib
import tempfile

import torch
import transformers

import acplan


class RandomTokens(torch.utils.data.Dataset):
    def __init__(self, vocabulary: int, length: int) -> None:
        self.tokens = torch.randint(vocabulary, (512, length))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    tiny = pathlib.Path(__file__).with_name("tiny_llama.json")
    parser.add_argument("--config", default=str(tiny), help="of a causal model")
    parser.add_argument("--budget", default="75%")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    has_cuda = torch.cuda.is_available()

    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(options.config)
    model = transformers.AutoModelForCausalLM.from_config(config)
    data = RandomTokens(config.vocab_size, options.length)
    batch = torch.utils.data.default_collate([data[k] for k in range(options.batch)])

    plan = acplan.plan(acplan.trace(model, **batch), budget=options.budget)
    print(plan)
    model = acplan.apply(model, plan)

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            max_steps=options.steps,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=not has_cuda,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=data)
        trainer.train()
    if has_cuda:
        print(f"peak {torch.cuda.max_memory_allocated():,} bytes")


if __name__ == "__main__":
    main()
