"""Plans in the trainers that people use: the same losses and weights, to the bit, with a
plan and without. docs/python/trainers.md has these tests as a table."""

import copy
import functools
import json
import logging
import pathlib
import re
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import acplan
import acplan.torchtitan
from acplan import AcplanError
from acplan._trainers import planned_step
from conftest import MakeOnce
from test_examples import EXAMPLES, TESTS, _output_of_two
from test_training_runs import Sentences, _equal, _gpt2, _llama

pytest.importorskip("accelerate")
import accelerate  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402

pytestmark = [
    # The CPU runs other attention kernels than a plan for CUDA has.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread", "no_accelerator"),
]


@pytest.fixture
def no_accelerator() -> Iterator[None]:
    """accelerate keeps its settings in the process."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def _trainer(
    folder: pathlib.Path,
    model: nn.Module | None,
    kind: type[transformers.Trainer] = transformers.Trainer,
    data: Any = None,
    **options: Any,
) -> transformers.Trainer:
    extra = {
        name: options.pop(name)
        for name in ("model_init", "compute_loss_func", "optimizers", "data_collator")
        if name in options
    }
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": 1e-2,
    }
    arguments = transformers.TrainingArguments(**(settings | options))
    data = Sentences(65, seed=2) if data is None else data
    return kind(model, arguments, train_dataset=data, **extra)


def _losses(trainer: transformers.Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _plan(trainer: transformers.Trainer, **options: Any) -> acplan.Plan:
    arguments = {"budget": "min", "time_limit": 1, **options}
    return acplan.transformers.auto_checkpoint(trainer, **arguments)


class OwnLoss(transformers.Trainer):
    """A trainer of a trainer's own kind, as others derive theirs."""

    def compute_loss(self, model: Any, inputs: Any, **kwargs: Any) -> Any:
        labels = inputs["labels"]
        logits = model(**{k: v for k, v in inputs.items() if k != "labels"}).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _loss_func(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    logits = outputs["logits"].flatten(0, 1)
    total = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    return total / num_items_in_batch


HF_CASES: dict[str, dict[str, Any]] = {
    "float32": {"max_grad_norm": 0.0},
    "bf16": {"bf16": True},
    "label_smoothing": {"label_smoothing_factor": 0.1},
    "compute_loss_func": {"compute_loss_func": _loss_func},
    "subclass": {"kind": OwnLoss},
    "sgd": {"optim": "sgd", "gradient_accumulation_steps": 1},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
}


@pytest.mark.parametrize("case", HF_CASES)
def test_transformers_trainer(case: str, tmp_path: pathlib.Path) -> None:
    options = dict(HF_CASES[case])
    trainers = []
    for is_planned in (False, True):
        torch._dynamo.reset()
        model = _gpt2(dropout=0.0, depth=1) if case == "compiled" else _llama()
        trainer = _trainer(tmp_path, model, **options)
        if is_planned:
            before = torch.get_rng_state()
            assert _plan(trainer, verify=case == "bf16").modules
            assert torch.equal(torch.get_rng_state(), before)
            assert trainer.model is model and trainer.optimizer is None
        trainer.train()
        trainers.append(trainer)
    plain_trainer, planned_trainer = trainers
    assert (
        _losses(planned_trainer) == _losses(plain_trainer)
        and len(_losses(planned_trainer)) == 2
    )
    assert _equal(planned_trainer.model, plain_trainer.model)
    assert len(set(_losses(planned_trainer))) == 2


def test_the_step_of_the_trainer_is_traced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch, the loss that it makes and what autocast does to it: to the byte the
    step that is given by hand."""
    trainer = _trainer(tmp_path, _llama(), bf16=True, optim="adamw_torch_fused")
    traced = _traced_for(functools.partial(_plan, trainer), monkeypatch)
    batch = torch.utils.data.default_collate([Sentences(8, seed=2)[k] for k in range(8)])
    step = {"optimizer": "adamw-fused", "autocast": "bf16", "clip_grad_norm": 1.0}
    by_hand = acplan.trace(_llama(), **batch, **step, accumulate=2)

    def matter(trace: acplan.Trace) -> list[str]:
        operators = trace.data["operators"][: trace.data["backward_end"]]
        return [o["name"] for o in operators if "_mm" in o["name"] or ".mm" in o["name"]]

    assert matter(traced) == matter(by_hand) and matter(traced)
    assert traced.accumulate == 2
    names = [operator["name"] for operator in traced.data["operators"]]
    assert "aten._fused_adamw_.default" in names
    assert traced.peak_bytes == pytest.approx(by_hand.peak_bytes, rel=0.01)


def _traced_for(plan: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> acplan.Trace:
    """Returns the trace that is made for a plan."""

    traces: list[acplan.Trace] = []

    def recorded_trace(*args: Any, **kwargs: Any) -> acplan.Trace:
        traces.append(acplan.trace(*args, **kwargs))
        return traces[-1]

    monkeypatch.setattr(planned_step, "trace", recorded_trace)
    plan()
    return traces[0]


def test_accumulated_gradients_count(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = []
    for count in (1, 2):
        trainer = _trainer(tmp_path, _llama(), gradient_accumulation_steps=count)
        peaks.append(_traced_for(functools.partial(_plan, trainer), monkeypatch).peak_bytes)
    gradients = sum(p.numel() * p.element_size() for p in _llama().parameters())
    assert peaks[0] < peaks[1] <= peaks[0] + 2 * gradients


def test_the_largest_batch_of_an_update_is_planned_for(tmp_path: pathlib.Path) -> None:
    def short_first(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = torch.utils.data.default_collate(samples)
        length = 16 if calls else 8
        calls.append(length)
        return {name: value[:, :length] for name, value in batch.items()}

    calls: list[int] = []
    trainer = _trainer(tmp_path, _llama(), data_collator=short_first)
    inputs = acplan.transformers._inputs(trainer, None)
    assert inputs["input_ids"].shape == inputs["labels"].shape == (8, 16)
    assert inputs["num_items_in_batch"] > 0
    own_inputs = acplan.transformers._inputs(trainer, {"input_ids": torch.ones(3, 9)})
    assert own_inputs["input_ids"].shape == (3, 9)


def test_models_that_the_trainer_makes(tmp_path: pathlib.Path) -> None:
    trainer = _trainer(tmp_path, None, model_init=lambda: _llama())
    _plan(trainer)
    trainer.train()
    expected = _trainer(tmp_path, None, model_init=lambda: _llama())
    expected.train()
    assert acplan._apply.apply.has_plan(trainer.model)
    assert _losses(trainer) == _losses(expected) and _equal(trainer.model, expected.model)


def test_a_checkpoint_without_a_plan_is_resumed_with_one(tmp_path: pathlib.Path) -> None:
    saved = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    expected = _trainer(tmp_path / "without", _llama(), **saved)
    expected.train()
    trainer = _trainer(tmp_path / "with", _llama(), **saved)
    _plan(trainer)
    trainer.train(resume_from_checkpoint=str(tmp_path / "without" / "checkpoint-1"))
    assert _losses(trainer)[-2:] == _losses(expected)[-2:]
    assert _equal(trainer.model, expected.model)
    loaded_model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "with/checkpoint-3")
    assert _equal(loaded_model, expected.model)


def test_peft(tmp_path: pathlib.Path) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> nn.Module:
        torch.manual_seed(1)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
        return peft.get_peft_model(_llama(), config)

    expected = _trainer(tmp_path, adapted(), bf16=True)
    expected.train()
    trainer = _trainer(tmp_path, adapted(), bf16=True)
    assert _plan(trainer, verify=True).modules
    trainer.train()
    assert _losses(trainer) == _losses(expected) and _equal(trainer.model, expected.model)
    saved = []
    for name, either in (("without", expected), ("with", trainer)):
        either.save_model(str(tmp_path / name))
        saved.append((tmp_path / name / "adapter_model.safetensors").read_bytes())
    assert saved[0] == saved[1]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"gradient_checkpointing": True}, "TrainingArguments.gradient_checkpointing"),
        ({"budget": "1KiB"}, "infeasible"),
        ({"bugdet": 1}, "unknown option 'bugdet'"),
    ],
)
def test_what_the_trainer_cannot_have(
    options: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    ours = {k: options.pop(k) for k in ("budget", "bugdet") if k in options}
    trainer = _trainer(tmp_path, _llama(), **options)
    with pytest.raises(AcplanError, match=message):
        _plan(trainer, **ours)
    assert not acplan._apply.apply.has_plan(trainer.model)


def test_a_trainer_that_has_trained_is_refused(tmp_path: pathlib.Path) -> None:
    trainer = _trainer(tmp_path, _llama(), torch_compile=True,
                       torch_compile_backend="eager", max_steps=1)  # fmt: skip
    trainer.train()
    with pytest.raises(AcplanError, match="before trainer.train"):
        _plan(trainer)


@pytest.fixture(scope="module")
def results_of_ranks(make_once: MakeOnce) -> dict[str, Any]:
    """The results of two processes: trainer_ranks.py."""

    def run(folder: pathlib.Path) -> None:
        output = _output_of_two(str(TESTS / "trainer_ranks.py"))
        (line,) = [line for line in output.splitlines() if line.startswith('{"ddp')]
        (folder / "results.json").write_text(line)

    results: dict[str, Any] = json.loads(
        (make_once("trainer_ranks", run) / "results.json").read_text()
    )
    return results


@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason="fully_shard of this PyTorch needs CUDA",
)
@pytest.mark.parametrize(
    "case",
    ["ddp", "ddp, bf16", "ddp, peft", "ddp, lightning", "fsdp2, lightning", "tp, lightning"]
    + ["fsdp2", "fsdp2, bf16", "fsdp2, peft", "tp, transformers"],
)
def test_two_processes(case: str, results_of_ranks: dict[str, Any]) -> None:
    result = results_of_ranks[case]
    assert result["error"] == "", result["error"]
    assert result["losses"][0] == result["losses"][1] and len(result["losses"][0]) > 1
    assert result["same_weights"] and result["units"] > 0


def test_an_error_of_the_first_rank_is_one_of_all(results_of_ranks: dict[str, Any]) -> None:
    first, second = results_of_ranks["errors"]
    assert "infeasible" in first
    assert first == second


def test_accelerate_refuses_what_it_has_prepared() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises(AcplanError, match="before accelerator.prepare"):
        acplan.accelerate.auto_checkpoint(accelerator, model, budget="min")


def _lightning_module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            blocks = (nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in "ab")
            self.blocks = nn.Sequential(*blocks)
            self.losses: list[float] = []
            self.outputs: list[torch.Tensor] = []

        def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
            inputs, targets = batch
            loss = (self.blocks(inputs) - targets).square().mean()
            self.log("loss", loss)
            self.outputs.append(loss)
            return {"loss": loss}

        def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
            self.losses.append(float(outputs["loss"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Module()


def _fitted(lightning: Any, callbacks: list[Any], **options: Any) -> Any:
    module = _lightning_module(lightning)
    x = torch.randn(32, 64, 32, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.roll(1, 0))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **options,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, 4, shuffle=True))
    return module


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bf16-mixed", "gradient_clip_val": 1.0},
        {"precision": "bf16-true"},
        {"accumulate_grad_batches": 2},
    ],
    ids=lambda options: ",".join(options) or "float32",
)
def test_lightning(options: dict[str, Any]) -> None:
    lightning = pytest.importorskip("lightning")
    expected = _fitted(lightning, [], **options)
    callback = acplan.lightning.AcplanCallback("min", verify=True, time_limit=1)
    actual = _fitted(lightning, [callback], **options)
    assert callback.plan.modules and acplan._apply.apply.has_plan(actual)
    assert actual.losses == expected.losses and len(actual.losses) >= 3
    assert len(actual.outputs) == len(actual.losses)
    assert _equal(actual, expected)


def test_lightning_refuses_other_steps() -> None:
    lightning = pytest.importorskip("lightning")
    callback = acplan.lightning.AcplanCallback("min")
    module = _lightning_module(lightning)
    module.automatic_optimization = False
    with pytest.raises(AcplanError, match="uses manual optimization"):
        callback.on_train_start(types.SimpleNamespace(), module)


class Decoder(nn.Module):
    """The shape of torchtitan's models."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(64, 32)
        blocks = (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in "ab")
        self.layers = nn.ModuleDict({str(k): block for k, block in enumerate(blocks)})
        self.output = nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = x + layer(x)
        return self.output(x)


def _titan_config(**parallelism: int) -> types.SimpleNamespace:
    part = types.SimpleNamespace
    degrees = {"data_parallel_shard_degree": -1, "data_parallel_replicate_degree": 1}
    return part(
        training=part(
            local_batch_size=8,
            global_batch_size=16,
            seq_len=256,
            mixed_precision_param="float32",
            max_norm=1.0,
        ),
        parallelism=part(**(degrees | parallelism)),
        optimizer=part(name="AdamW", implementation="foreach"),
    )


def test_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    expected = Decoder()
    planned_model = copy.deepcopy(expected).to("meta")
    policy = acplan.torchtitan.Policy.from_config(_titan_config(), "min")
    traced = _traced_for(
        lambda: acplan.torchtitan.apply_ac(
            planned_model, policy, model_compile_enabled=False, base_folder="outputs"
        ),
        monkeypatch,
    )
    assert traced.accumulate == 2 and acplan._apply.apply.has_plan(planned_model)
    assert planned_model.state_dict().keys() == expected.state_dict().keys()
    planned_model.to_empty(device="cpu").load_state_dict(expected.state_dict())
    tokens = torch.randint(64, (8, 256))
    for model in (expected, planned_model):
        acplan.torchtitan.cross_entropy(model(tokens), tokens).backward()
    for a, b in zip(expected.parameters(), planned_model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


# Each is run with a plan and without. The logger of its trainer says once what acplan did.
ALONE = {
    "plain_loop": "",
    "transformers_trainer": "transformers.trainer",
    "peft_trainer": "transformers.trainer",
    "accelerate_loop": "accelerate",
    "lightning_module": "lightning.pytorch",
}
SUMMARY = (
    r"acplan: peak [\d.]+ MiB without a plan, [\d.]+ MiB with it, budget [\d.]+ MiB; "
    r"recomputes [\d.]+ ms, [\d.]+% of the step on a100; [\d,]+ units?, (optimal|feasible) "
    r"plan.*; planned for \w+ \[.*"
)


@pytest.mark.parametrize("name", ALONE)
def test_examples_of_trainers(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for package in ("peft", "lightning"):
        if name.startswith(package):
            pytest.importorskip(package)
    logger = logging.getLogger(ALONE[name])
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, caplog.handler])
    losses = []
    for options in ([], ["--without"]):
        monkeypatch.setattr(sys, "argv", [name, *options])
        AcceleratorState._reset_state(True)
        runpy.run_path(str(EXAMPLES / "trainers" / f"{name}.py"), run_name="__main__")
        out = capsys.readouterr().out
        losses.append([line for line in out.splitlines() if line.startswith("losses")])
    assert losses[0] == losses[1] and losses[0]
    records = {id(record): record.getMessage() for record in caplog.records}
    texts = [text for text in records.values() if "acplan: " in text]
    assert len(texts) == bool(ALONE[name]), texts
    assert all(re.fullmatch(SUMMARY, text) for text in texts), texts


@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason="fully_shard of this PyTorch needs CUDA",
)
def test_example_of_torchtitan_on_two_processes() -> None:
    losses = []
    for options in ([], ["--without"]):
        output = _output_of_two("trainers/torchtitan_policy.py", *options)
        losses.append([x for x in output.splitlines() if x.startswith("losses")])
    assert losses[0] == losses[1] and len(losses[0]) == 2
