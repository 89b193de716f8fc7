"""Tables of plans in trainers: the plan is switched by the shape of each batch, and losses and
weights are those without a plan, to the bit."""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan import AcplanError
from acplan._apply.switching import switch_of
from acplan._apply.unit import Unit, is_idle
from run_events import tiny_gpt2
from test_trainers import _losses, _trainer, no_accelerator  # noqa: F401
from test_training_runs import _equal

pytest.importorskip("accelerate")
import accelerate  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread", "no_accelerator"),
]

# Short batches, which fit the device without a plan, and long ones, whose live bytes do not.
SHORT, LONG = 8, 32
BATCH = 64
LENGTHS = acplan.Lengths({SHORT: 1, LONG: 1}, steps=6)
OPTIONS: dict[str, Any] = {"device_memory": "59MiB", "plans": 2, "time_limit": 20}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return tiny_gpt2(
        n_layer=3,
        n_positions=LONG,
        attn_implementation="eager",
        attn_pdrop=0,
        resid_pdrop=0,
        embd_pdrop=0,
    )


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples in batches of one length: a batch is short if its first token is even."""

    def __init__(self, batches: int) -> None:
        numbers = torch.Generator().manual_seed(3)
        self._tokens = torch.randint(0, 128, (batches * BATCH, LONG), generator=numbers)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._tokens[index]


def _collate(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = torch.stack(samples)
    length = LONG if int(tokens[0, 0]) % 2 else SHORT
    return _batch(length, tokens[:, :length])


def _batch(length: int, tokens: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(BATCH, length, dtype=torch.long) if tokens is None else tokens
    return {"input_ids": tokens, "labels": tokens.clone()}


def _followed(caller: nn.Module, model: nn.Module | None = None) -> dict[int, set[str]]:
    """Notes, in the returned dict, which units the model (or `caller` itself) has when it is
    called with a batch of a length."""
    units: dict[int, set[str]] = {}
    with_units = model or caller

    def note(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        length = next(iter([*args, *kwargs.values()])).shape[1]
        active = (m for m in with_units.modules() if isinstance(m, Unit) and not is_idle(m))
        units.setdefault(length, set()).update(unit._acplan_planned[0] for unit in active)

    caller.register_forward_pre_hook(note, with_kwargs=True)
    return units


def _require_followed(units: dict[int, set[str]], table: acplan.PlanTable) -> None:
    assert set(units) == {SHORT, LONG}
    assert units == {n: {m.fqn for m in table.plan_for(n).modules} for n in units}
    assert units[SHORT] != units[LONG]


@pytest.mark.parametrize("way", ["planned", "applied"])
def test_transformers_trainer(way: str, tmp_path: pathlib.Path) -> None:
    trainers, units, table = [], {}, None
    for is_planned in (False, True):
        trainer = _trainer(
            tmp_path,
            _model(),
            data=Tokens(6),
            data_collator=_collate,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=1,
            max_steps=6,
        )
        if is_planned:
            table = _table_of(trainer, way, tmp_path)
            units = _followed(trainer.model)
        trainer.train()
        trainers.append(trainer)
    assert table is not None
    _require_followed(units, table)
    assert _losses(trainers[1]) == _losses(trainers[0])
    assert _equal(trainers[1].model, trainers[0].model)


def _table_of(
    trainer: transformers.Trainer, way: str, folder: pathlib.Path
) -> acplan.PlanTable:
    if way == "planned":
        return acplan.transformers.auto_checkpoint(
            trainer, batch=_batch, lengths=LENGTHS, verify=True, **OPTIONS
        )
    traces = acplan.trace_lengths(trainer.model, _batch, LENGTHS)
    acplan.plan(traces, lengths=LENGTHS, **OPTIONS).save(folder / "table.json")
    acplan.apply(trainer.model, folder / "table.json")
    return acplan.PlanTable.load(folder / "table.json")


def test_accelerate() -> None:
    results = []
    for is_planned in (False, True):
        model = _model()
        accelerator = accelerate.Accelerator(cpu=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        if is_planned:
            table = acplan.accelerate.auto_checkpoint(
                accelerator,
                model,
                inputs_of=_batch,
                lengths=LENGTHS,
                optimizer=optimizer,
                **OPTIONS,
            )
            units = _followed(model)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        losses = []
        for k in range(4):
            tokens = torch.stack([Tokens(2)[i] for i in range(BATCH)])
            batch = _batch(0, tokens[:, : (SHORT, LONG)[k % 2]])
            loss = prepared(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
        results.append((losses, model))
    _require_followed(units, table)
    assert results[0][0] == results[1][0]
    assert _equal(results[1][1], results[0][1])


def test_lightning() -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = _model()
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(**batch).loss  # and not self(batch)
            self.losses.append(float(loss))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    modules = []
    callback = acplan.lightning.AcplanCallback(batch=_batch, lengths=LENGTHS, **OPTIONS)
    units: dict[int, set[str]] = {}
    for callbacks in ([], [callback]):
        module = Module()
        if callbacks:
            units = _followed(module.net, module)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=6,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )
        loader = torch.utils.data.DataLoader(Tokens(6), BATCH, collate_fn=_collate)
        trainer.fit(module, loader)
        modules.append(module)
    assert isinstance(callback.plan, acplan.PlanTable)
    assert switch_of(modules[1]) is not None
    _require_followed(units, callback.plan)
    assert modules[1].losses[-6:] == modules[0].losses
    assert _equal(modules[1], modules[0])


def test_what_a_table_needs_is_said(tmp_path: pathlib.Path) -> None:
    trainer = _trainer(tmp_path, _model(), data=Tokens(1), data_collator=_collate)
    plan = functools.partial(acplan.transformers.auto_checkpoint, trainer)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"lengths": LENGTHS, "batch": _batch, "budget": "1GiB"}, "needs device_memory"),
        ({"lengths": LENGTHS, "device_memory": "1GiB"}, "expected batch=, a function"),
        (
            {"lengths": LENGTHS, "device_memory": "1GiB", "batch": _batch(8)},
            "batch: expected a function of a length, found dict",
        ),
        ({"plans": 2, "budget": "1GiB"}, "plans: a table of plans needs lengths"),
    ]
    for options, complaint in cases:
        with pytest.raises(AcplanError, match=complaint):
            plan(**options)
    trainer.args.torch_compile = True
    with pytest.raises(AcplanError, match="switched in eager code"):
        plan(lengths=LENGTHS, device_memory="1GiB", batch=_batch)
