"""Whole training runs with a plan that was made for the kernels of CUDA, on a CPU,
which runs others: an epoch with a last batch of one, evaluation, and resumption."""

import copy
import functools
import pathlib
import random
import warnings
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan import Plan, PlanMismatchWarning, PlannedModule, PlannedOperator

BATCH = 8
SAMPLES = 65

pytestmark = pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")


def _gpt2(dropout: float = 0.1, depth: int = 3) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=depth,
        n_embd=32,
        n_head=2,
        n_positions=32,
        vocab_size=64,
        use_cache=False,
        attn_pdrop=dropout,
        embd_pdrop=dropout,
        resid_pdrop=dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config)


def _llama(dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=3,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
        attention_dropout=dropout,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


class Sentences(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sentences of different lengths, padded to the longest one that there can be."""

    def __init__(self, count: int, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        self._lengths = torch.randint(4, 17, (count,), generator=numbers)
        self._tokens = torch.randint(3, 64, (count, 16), generator=numbers)

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        is_there = torch.arange(16) < self._lengths[index]
        tokens = self._tokens[index]
        return {
            "input_ids": tokens.where(is_there, 0),
            "attention_mask": is_there.long(),
            "labels": tokens.where(is_there, -100),
        }


def _batch(size: int = BATCH) -> dict[str, torch.Tensor]:
    data = Sentences(size, seed=1)
    return torch.utils.data.default_collate([data[k] for k in range(size)])


@functools.cache
def _traced(make: Any) -> acplan.Trace:
    with torch.device("meta"):
        model = make()
        batch = {k: v.to("meta") for k, v in _batch().items()}
    # The workspaces of so small a model are most of its memory.
    return acplan.trace(model, autocast=torch.bfloat16, workspaces=False, **batch)


def _by_chance(traced: acplan.Trace) -> Plan:
    """Returns a plan of every block by chance, as CUDA runs it."""
    chance = random.Random(0)
    data = traced.data
    names = [module["fqn"] for module in data["modules"]]
    blocks = {
        names[call["module"]]: data["operators"][call["start"] : call["end"]]
        for call in data["calls"]
        if names[call["module"]].rpartition(".")[0].endswith((".h", ".layers"))
    }
    assert blocks
    return Plan(
        tuple(
            PlannedModule(
                name,
                tuple(PlannedOperator(o["name"], chance.random() < 0.5) for o in run),
            )
            for name, run in blocks.items()
        )
    )


def _train(
    model: nn.Module, folder: pathlib.Path, resume: str | None = None, **options: Any
) -> tuple[nn.Module, list[tuple[float, float]]]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=3,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
        bf16=True,
        **options,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=Sentences(SAMPLES, seed=2),
        eval_dataset=Sentences(11, seed=3),
    )
    trainer.train(resume_from_checkpoint=resume)
    losses = [
        (entry["step"], entry[key])
        for entry in trainer.state.log_history
        for key in ("loss", "grad_norm", "eval_loss")
        if key in entry
    ]
    return model, losses


def _equal(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )


@pytest.mark.parametrize("make", [_gpt2, _llama])
def test_an_epoch_with_trainer(make: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("accelerate")
    model, losses = _train(make(), tmp_path / "without")
    assert len(losses) == 2 * 5 + 3 and not _equal(model, make())
    traced = _traced(make)
    for index, plan in enumerate((_by_chance(traced), acplan.plan(traced, "90%"))):
        folder = tmp_path / str(index)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            planned_model, planned_losses = _train(acplan.apply(make(), plan), folder)
        warned = [w for w in caught if w.category is PlanMismatchWarning]
        # If a CPU lacks the planned kernels, the first unit of a process warns for all.
        assert len(warned) <= (3 if index == 0 else len(plan.modules))
        assert planned_losses == losses
        assert _equal(planned_model, model)
        # Half-way, with a plan or without, from what was saved with one.
        checkpoint = str(folder / "checkpoint-3")
        for resumed in (make(), acplan.apply(make(), plan)):
            resumed, resumed_losses = _train(resumed, tmp_path / "again", checkpoint)
            assert resumed_losses == losses
            assert _equal(resumed, model)
        loaded = type(make()).from_pretrained(folder / "checkpoint-5")
        assert _equal(loaded, model)
        planned_model.save_pretrained(tmp_path / "saved")
        assert _equal(type(make()).from_pretrained(tmp_path / "saved"), model)
        assert _equal(acplan.remove(planned_model), model)


@pytest.mark.filterwarnings("ignore")
def test_an_epoch_with_trainer_and_compile(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("accelerate")
    options = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    make = functools.partial(_gpt2, 0.0, 1)
    torch._dynamo.reset()
    _, losses = _train(make(), tmp_path / "without", **options)
    plan = _by_chance(_traced(make))
    torch._dynamo.reset()
    _, planned_losses = _train(acplan.apply(make(), plan), tmp_path / "with", **options)
    assert [step for step, _ in planned_losses] == [step for step, _ in losses]
    for (_, a), (_, b) in zip(losses, planned_losses):
        assert a == pytest.approx(b, rel=1e-2)


@pytest.mark.filterwarnings("ignore:.*checkpointing:FutureWarning")
def test_gradient_checkpointing_of_transformers_is_refused() -> None:
    model, plan = _gpt2(), _by_chance(_traced(_gpt2))
    model.gradient_checkpointing_enable()
    with pytest.raises(acplan.AcplanError, match=r"\w+_checkpointing_disable\(\)"):
        acplan.apply(model, plan)
    model.gradient_checkpointing_disable()
    with pytest.raises(acplan.AcplanError, match=r"acplan.remove\(model\)"):
        acplan.apply(acplan.apply(model, plan), plan)


def _step(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1)
    loss = model.train()(**_batch(1)).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def test_a_step_without_fused_attention() -> None:
    """The plan of a model as it is traced, the model as it is debugged."""
    model = _llama()
    model.set_attn_implementation("eager")
    expected = _step(copy.deepcopy(model))
    actual = _step(acplan.apply(model, _by_chance(_traced(_llama))))
    assert all(map(torch.equal, actual, expected)) and len(actual) == len(expected) > 9


@pytest.mark.filterwarnings("ignore:.*checkpointing:FutureWarning")
def test_gradient_checkpointing_that_is_switched_on_later() -> None:
    expected = _step(_gpt2())
    model = acplan.apply(_gpt2(), _by_chance(_traced(_gpt2)))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    actual = _step(model)
    assert all(map(torch.equal, actual, expected)) and len(actual) == len(expected) > 9
