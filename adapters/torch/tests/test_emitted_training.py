"""Real training with the configurations that `acplan emit` prints: losses and weights are those
of training without checkpoints, to the bit."""

import contextlib
import functools
import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

import acplan
from test_trainers import _losses, _trainer, no_accelerator  # noqa: F401, the fixture
from test_training_runs import Sentences, _llama
from trainer_policies import TRAINERS, _run, emitted

pytestmark = [
    # The CPU runs other attention kernels than the trace for CUDA has.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread", "no_accelerator"),
]

_STEPS = 3
Trained = tuple[list[float], nn.Module]


@functools.cache
def _trace(dropout: float) -> acplan.Trace:
    batch = next(iter(DataLoader(Sentences(8, seed=2), batch_size=8)))
    return acplan.trace(_llama(dropout), progress=False, optimizer="sgd", **batch)


def _text(trainer: str) -> str:
    """Returns a configuration with units, for half of what the language can spare."""
    quick = ("--time-limit", "0.1")
    # accelerate's checkpoints do not keep the random state.
    trace = _trace(0.0 if trainer == "accelerate" else 0.1)
    least = emitted(trace, trainer, "min", *quick)["budget_bytes"]
    emission = emitted(trace, trainer, str((least + trace.peak_bytes) // 2), *quick)
    assert emission["units"]
    return str(emission["text"])


def _arguments(text: str, name: str) -> dict[str, Any]:
    """Returns the keyword arguments of a configuration that is a call."""
    lines = [line for line in text.splitlines() if not line.startswith("from ")]
    arguments: dict[str, Any] = _run("\n".join(lines), **{name: dict})["args"]
    return arguments


def _plain_loop(model: nn.Module, step: Callable[[torch.Tensor], None]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in DataLoader(Sentences(8 * _STEPS, seed=2), batch_size=8):
        loss = model(**batch).loss
        step(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def _by_torch(folder: pathlib.Path, text: str | None) -> Trained:
    model = _llama()
    if text is not None:
        TRAINERS["torch"](model, text)
    torch.manual_seed(1)
    return _plain_loop(model, lambda loss: loss.backward()), model


def _by_accelerate(folder: pathlib.Path, text: str | None) -> Trained:
    accelerate = pytest.importorskip("accelerate")
    model = _llama(dropout=0.0)
    if text is not None:
        TRAINERS["accelerate"](model, text)
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(model)
    torch.manual_seed(1)
    return _plain_loop(model, accelerator.backward), accelerator.unwrap_model(model)


def _by_lightning(folder: pathlib.Path, text: str | None) -> Trained:
    lightning = pytest.importorskip("lightning")
    losses = []

    class Module(lightning.LightningModule):  # type: ignore[misc]  # it is Any here
        def __init__(self) -> None:
            super().__init__()
            self.model = _llama()
            if text is not None:
                TRAINERS["lightning"](self.model, text)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(**batch).loss
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = lightning.Trainer(
        max_steps=_STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    torch.manual_seed(1)
    trainer.fit(module, DataLoader(Sentences(8 * _STEPS, seed=2), batch_size=8))
    return losses, module.model


def _by_transformers(folder: pathlib.Path, text: str | None) -> Trained:
    own = {} if text is None else _arguments(text, "TrainingArguments")
    trainer = _trainer(folder, _llama(), max_steps=_STEPS, **own)
    trainer.train()
    assert trainer.model is not None
    return _losses(trainer), trainer.model


def _by_trl(folder: pathlib.Path, text: str | None) -> Trained:
    if not all(importlib.util.find_spec(name) for name in ("trl", "datasets")):
        pytest.skip("trl or datasets is not installed")
    trl = importlib.import_module("trl")
    datasets = importlib.import_module("datasets")
    rows = [{key: value.tolist() for key, value in row.items()} for row in _rows()]
    own = {"gradient_checkpointing": False} if text is None else _arguments(text, "SFTConfig")
    tokenizer = _tokenizer()
    trainer = trl.SFTTrainer(
        model=_llama(), processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(rows),
        args=trl.SFTConfig(
            output_dir=str(folder), max_steps=_STEPS, per_device_train_batch_size=8,
            logging_steps=1, save_strategy="no", report_to="none", use_cpu=True,
            disable_tqdm=True, learning_rate=1e-2, bf16=False,
            dataset_kwargs={"skip_prepare_dataset": True}, **own,
        ),
    )  # fmt: skip
    trainer.train()
    return _losses(trainer), trainer.model


def _rows() -> list[dict[str, torch.Tensor]]:
    sentences = Sentences(8 * _STEPS, seed=2)
    return [
        {"input_ids": sentences[k]["input_ids"], "labels": sentences[k]["labels"]}
        for k in range(len(sentences))
    ]


def _tokenizer() -> Any:
    tokenizers = importlib.import_module("tokenizers")
    words = {f"w{k}": k for k in range(64)}
    model = tokenizers.models.WordLevel(words, unk_token="w1")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), pad_token="w0", eos_token="w2"
    )


_TRAININGS: dict[str, Callable[[pathlib.Path, str | None], Trained]] = {
    "accelerate": _by_accelerate,
    "lightning": _by_lightning,
    "torch": _by_torch,
    "transformers": _by_transformers,
    "trl": _by_trl,
}


@pytest.mark.parametrize("trainer", _TRAININGS)
def test_losses_are_those_without_checkpoints(trainer: str, tmp_path: pathlib.Path) -> None:
    with contextlib.chdir(tmp_path):
        expected, plain = _TRAININGS[trainer](tmp_path, None)
        losses, model = _TRAININGS[trainer](tmp_path, _text(trainer))
    assert losses == expected
    assert len(losses) == _STEPS and len(set(losses)) == _STEPS
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(weight, other) for weight, other in pairs)


def test_units_that_would_draw_other_random_numbers_are_not_emitted() -> None:
    """Dropout is in attention: its modules and those around them are no units, others are."""
    emission = emitted(_trace(0.1), "accelerate", "min", "--time-limit", "0.1")
    assert {unit.rpartition(".")[2] for unit in emission["units"]} == {"mlp"}
    plain = emitted(_trace(0.0), "accelerate", "min", "--time-limit", "0.1")
    assert plain["budget_bytes"] < emission["budget_bytes"]
