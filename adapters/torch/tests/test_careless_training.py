"""Training scripts as careless users write them: what a plan may not change of a trainer,
its data and its model, and what becomes of a model with a plan."""

import functools
import io
import itertools
import pathlib
import random
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan import AcplanError
from acplan._apply.apply import has_plan
from acplan._fakes import restored_state
from test_training_runs import Sentences, _equal, _llama

pytest.importorskip("accelerate")
from test_trainers import (  # noqa: E402
    _losses,
    _plan,
    _trainer,
    no_accelerator,  # noqa: F401
)

pytestmark = [
    # The CPU runs other attention kernels than a plan for CUDA has.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread", "no_accelerator"),
]


class NotingTrainer(transformers.Trainer):
    """Keeps what its steps make, as trainers of trainers do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metrics: Any = defaultdict(list)
        self.last: Any = None

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        self.metrics["train"].append(loss.detach())
        self.last = loss.detach()
        return loss


def test_what_a_trainer_notes_is_that_of_real_steps(tmp_path: pathlib.Path) -> None:
    trainer = _trainer(tmp_path, _llama(), NotingTrainer)
    accelerator = trainer.accelerator
    _plan(trainer)
    assert not trainer.metrics and trainer.last is None
    assert accelerator._dataloaders == []
    assert accelerator.gradient_state.active_dataloader is None
    trainer.train()
    assert [type(loss) for loss in trainer.metrics["train"]] == [torch.Tensor] * 4


class OwnRandom(Sentences):
    """Augments with random numbers of its own."""

    def __init__(self) -> None:
        super().__init__(65, seed=2)
        self.random = random.Random(0)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample = dict(super().__getitem__(index))
        shift = self.random.randrange(9)
        return sample | {"input_ids": sample["input_ids"].roll(shift, 0)}


def test_random_numbers_of_the_data_are_as_they_were(tmp_path: pathlib.Path) -> None:
    expected = _trainer(tmp_path, _llama(), data=OwnRandom())
    expected.train()
    trainer = _trainer(tmp_path, _llama(), data=OwnRandom())
    _plan(trainer)
    trainer.train()
    assert _losses(trainer) == _losses(expected)


class ReadOnce(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __init__(self, samples: Any) -> None:
        self.iterator = iter(samples)

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


class Counted(Sentences):
    """Has places, and gives others at each reading; its file may be read from anywhere."""

    def __init__(self, steps: Any) -> None:
        super().__init__(65, seed=2)
        self.steps, self.file = steps, io.BytesIO()

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.file.seek(0)
        step = next(self.steps) if self.steps is not None else 0
        return super().__getitem__((index + step) % 65)


def test_places_that_read_on_are_left_to_the_training(tmp_path: pathlib.Path) -> None:
    data = Counted(itertools.count())
    with pytest.raises(AcplanError, match="read a count, which can be read once"):
        _plan(_trainer(tmp_path, _llama(), data=data))
    assert next(data.steps) == 0
    assert _plan(_trainer(tmp_path, _llama(), data=Counted(None))).modules


def test_data_that_can_be_read_once_is_left_to_the_training(tmp_path: pathlib.Path) -> None:
    sentences = Sentences(16, seed=2)
    data = ReadOnce([sentences[k] for k in range(16)])
    trainer = _trainer(tmp_path, _llama(), data=data, max_steps=1)
    with pytest.raises(AcplanError, match="read a list_iterator, which can be read once"):
        _plan(trainer)
    assert len([*data.iterator]) == 16
    batch = torch.utils.data.default_collate([sentences[k] for k in range(8)])
    assert _plan(trainer, batch=batch).modules


def test_arguments_of_the_optimizer_stay_in_their_dict(tmp_path: pathlib.Path) -> None:
    model = _llama()
    trained = [*model.model.layers[0].parameters()]
    trainer = _trainer(tmp_path, model)
    arguments = {"params": trained, "lr": 0.1}
    trainer.optimizer_cls_and_kwargs = (torch.optim.SGD, arguments)
    _plan(trainer)
    assert set(arguments) == {"params", "lr"} and trainer.optimizer is None
    groups = trainer.create_optimizer().param_groups
    assert sum(len(group["params"]) for group in groups) == len(trained)


def test_models_are_made_without_a_plan_that_was_removed(tmp_path: pathlib.Path) -> None:
    trainer = _trainer(tmp_path, None, model_init=lambda: _llama(), max_steps=1)
    _plan(trainer)
    acplan.remove(trainer.model)
    assert not has_plan(trainer.model_init())
    _plan(trainer)
    assert has_plan(trainer.model_init())


@pytest.mark.parametrize(
    "batch, message",
    [
        ([1], "batch: expected a dict of inputs by name, found list"),
        (None, "the train dataset has no batch"),
    ],
)
def test_batches_that_are_none(batch: Any, message: str, tmp_path: pathlib.Path) -> None:
    trainer = _trainer(tmp_path, _llama(), data=[])
    with pytest.raises(AcplanError, match=message):
        _plan(trainer, batch=batch)


def test_what_is_planned_already_is_refused_before_it_is_traced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer(tmp_path, _llama())
    _plan(trainer)
    monkeypatch.setattr("acplan._trainers.planned_step.trace", None)
    with pytest.raises(AcplanError, match="already has a plan"):
        _plan(trainer)
    for budget in ("lots", True, 1.5):
        with pytest.raises(AcplanError, match="budget: expected bytes"):
            _plan(_trainer(tmp_path, _llama()), budget=budget)
    with pytest.raises(AcplanError, match="expected a budget or device_memory, found neither"):
        _plan(_trainer(tmp_path, _llama()), budget=None)


def test_others_than_trainers_are_refused() -> None:
    with pytest.raises(AcplanError, match="expected a transformers.Trainer, found int"):
        acplan.transformers.auto_checkpoint(3, budget="min")
    with pytest.raises(AcplanError, match="expected an accelerate.Accelerator, found Lin"):
        acplan.accelerate.auto_checkpoint(nn.Linear(2, 2), nn.Linear(2, 2), budget="min")
    make_policy = acplan.torchtitan.Policy.from_config
    with pytest.raises(AcplanError, match="expected a configuration of torchtitan"):
        make_policy(None, "min")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"local_batch_size": 0}, "local_batch_size: expected a whole number, 1 or more"),
        ({"seq_len": "8"}, "seq_len: expected a whole number, 1 or more, found '8'"),
        ({"max_norm": "x"}, "max_norm: expected a number"),
        ({"mixed_precision_param": 16}, "expected a data type, found 16"),
        ({"data_parallel_replicate_degree": 2}, "replicate_degree: expected 1 or less"),
    ],
)
def test_configurations_of_torchtitan(change: dict[str, Any], message: str) -> None:
    from test_trainers import _titan_config

    config = _titan_config()
    for name, value in change.items():
        part = config.training if hasattr(config.training, name) else config.parallelism
        setattr(part, name, value)
    with pytest.raises(AcplanError, match=message):
        acplan.torchtitan.Policy.from_config(config, "min")
    with pytest.raises(AcplanError, match="expected layers"):
        acplan.torchtitan.Policy.from_config(_titan_config(), "min").apply(nn.Linear(2, 2))


# --- Units


def _with_units() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model, tokens = _llama(dropout=0.0), torch.ones(8, 16, dtype=torch.long)
    names = [f"LlamaForCausalLM.model.layers.{k}.self_attn" for k in range(3)]
    modules = tuple(map(acplan.PlannedModule, names))
    acplan.apply(model, acplan.Plan(modules))
    return model, {"input_ids": tokens, "labels": tokens}


def test_adapters_of_a_model_with_a_plan_are_trained() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    model, inputs = _with_units()
    planned_model = peft.get_peft_model(model, config)
    plain = peft.get_peft_model(_llama(dropout=0.0), config)
    plain.load_state_dict(planned_model.state_dict())
    for net in (planned_model, plain):
        net(**inputs).loss.backward()
    pairs = zip(planned_model.parameters(), plain.parameters(), strict=True)
    trained = [(a.grad, b.grad) for a, b in pairs if b.requires_grad]
    assert len(trained) == 12 and all(torch.equal(a, b) for a, b in trained)
    merged = [net.merge_and_unload() for net in (planned_model, plain)]
    assert _equal(*merged) and torch.equal(*(net(**inputs).logits for net in merged))


def test_what_is_set_on_a_unit_is_set_on_its_module() -> None:
    model, _ = _with_units()
    unit = model.model.layers[0].self_attn
    (module,) = [m for m in model.model.layers[0].modules() if "Attention" in type(m).__name__]
    assert unit is not module
    unit.attention_dropout = 0.7
    unit.q_proj = new = nn.Identity()
    del unit.layer_idx
    assert module.attention_dropout == 0.7 and module.q_proj is new
    assert not hasattr(module, "layer_idx")
    unit.training = False
    assert not module.training and not unit.training
    acplan.remove(model)
    assert model.model.layers[0].self_attn is module


def test_a_unit_is_in_the_mode_of_its_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].eval()
    modules = tuple(acplan.PlannedModule(f"Sequential.{k}") for k in range(2))
    acplan.apply(model, acplan.Plan(modules))
    assert [model[0].training, model[1].training] == [False, True]


def test_dictionaries_by_tensors_are_put_back() -> None:
    """As the state of an optimizer that a model has is."""
    model = nn.Linear(2, 2)
    model.states = {p: {} for p in model.parameters()}
    before = [*model.states]
    with restored_state.state_kept(model):
        model.states[model.weight] = 3
    assert all(a is b for a, b in zip(model.states, before, strict=True))
    assert [*model.states.values()] == [{}, {}]


# --- Lightning


def _module(lightning: Any, **parts: nn.Module) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
            self.norm = nn.BatchNorm1d(8)
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            batch = batch["a"] if isinstance(batch, dict) else batch
            return (self.layers(self.norm(batch[0])) - batch[0]).square().mean()

        def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
            self.losses.append(float(outputs["loss"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Module()


def _fit(module: Any, data: Any, plan: bool, ckpt_path: Any = None, **options: Any) -> Any:
    lightning = pytest.importorskip("lightning")
    callback = acplan.lightning.AcplanCallback("100%")
    settings = {"accelerator": "cpu", "max_epochs": 2, "logger": False}
    for name in ("checkpointing", "progress_bar", "model_summary"):
        settings[f"enable_{name}"] = False
    trainer = lightning.Trainer(callbacks=[callback] * plan, **(settings | options))
    torch.manual_seed(7)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    assert not plan or callback.plan is not None
    return trainer


def _loader(**options: Any) -> torch.utils.data.DataLoader:  # type: ignore[type-arg]
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x)
    return torch.utils.data.DataLoader(data, 4, shuffle=True, **options)


@pytest.mark.parametrize("kind", ["dict", "workers", "generator"])
def test_loaders_of_lightning(kind: str) -> None:
    lightning = pytest.importorskip("lightning")

    def loaders() -> Any:
        if kind == "dict":
            return {"a": _loader(), "b": _loader()}
        if kind == "generator":
            return _loader(generator=torch.Generator().manual_seed(3))
        return _loader(num_workers=1, persistent_workers=True)

    modules = [_module(lightning) for _ in "ab"]
    for module, plan in zip(modules, (False, True)):
        _fit(module, loaders(), plan)
    assert modules[0].losses == modules[1].losses and len(modules[0].losses) == 8


class OneReading:
    """A loader of a user's own."""

    def __init__(self) -> None:
        self.batches = iter([*_loader()])

    def __iter__(self) -> Iterator[Any]:
        return self.batches


def test_loaders_that_are_read_once_are_left_to_lightning() -> None:
    lightning = pytest.importorskip("lightning")
    loader = OneReading()
    with pytest.raises(AcplanError, match="read a list_iterator, which can be read once"):
        _fit(_module(lightning), loader, True)
    assert len([*loader.batches]) >= 3  # of 4; Lightning fetches one ahead


def test_lightning_resumes_with_a_plan(tmp_path: pathlib.Path) -> None:
    lightning = pytest.importorskip("lightning")
    first = _fit(_module(lightning), _loader(), False, max_epochs=1)
    first.save_checkpoint(tmp_path / "c.ckpt")
    modules = [_module(lightning) for _ in "ab"]
    for module, plan in zip(modules, (False, True)):
        _fit(module, _loader(), plan, tmp_path / "c.ckpt")
    assert modules[0].losses == modules[1].losses and len(modules[0].losses) == 4


def test_parts_that_lightning_leaves_in_eval_mode_are_traced_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from test_trainers import _traced_for

    lightning = pytest.importorskip("lightning")
    module = _module(lightning)
    module.norm.eval()
    fit = functools.partial(_fit, module, _loader(), True, max_epochs=1)
    traced = _traced_for(fit, monkeypatch)
    names = {operator["name"] for operator in traced.data["operators"]}
    assert "aten.add_.Tensor" not in names  # of the count of batches that it has seen
    assert not module.norm.training and module.layers.training
    assert module.norm.num_batches_tracked == 0


def test_steps_that_lightning_cannot_have_planned() -> None:
    lightning = pytest.importorskip("lightning")
    module = _module(lightning)
    module.configure_optimizers = lambda: None
    with pytest.raises(AcplanError, match="configure_optimizers: expected an optimizer"):
        _fit(module, _loader(), True)
    module = _module(lightning)
    data = torch.utils.data.DataLoader(ReadOnce([(torch.ones(8),)] * 8), 4)
    with pytest.raises(AcplanError, match="which can be read once"):
        _fit(module, data, True)


# --- Ranks

_RANK = """
    import os, sys
    import torch.distributed as dist
    from acplan._trainers.once_per_rank import made_once

    def make():
        raise KeyboardInterrupt

    rank = int(sys.argv[2])
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
    try:
        made_once(make)
    except BaseException as error:
        print(type(error).__name__, error)
"""


def test_an_interrupted_first_rank_lets_the_others_go(tmp_path: pathlib.Path) -> None:
    where = f"file://{tmp_path}/store"
    command = [sys.executable, "-c", textwrap.dedent(_RANK), where]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=60)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    # Some versions of Gloo print lines of their own before.
    last = [lines.rpartition("\n")[2] for lines in said]
    assert last[0].startswith("KeyboardInterrupt")
    assert last[1].startswith("AcplanError on the first rank: KeyboardInterrupt")
