"""More cells of the table of docs/python/trainers.md: fp16 and its scaler, and a refusal."""

import pathlib
import types
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from test_training_runs import _equal, _llama

pytest.importorskip("accelerate")
from test_trainers import (  # noqa: E402
    _losses,
    _plan,
    _traced_for,
    _trainer,
    no_accelerator,  # noqa: F401
)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread", "no_accelerator"),
]


def _scaling_trainer(folder: pathlib.Path) -> Any:
    """Returns a trainer with fp16 and its scaler, which accelerate gives to GPUs alone."""
    trainer = _trainer(folder, _llama(), fp16=True, max_steps=3, max_grad_norm=0.5)
    trainer.accelerator.native_amp = True
    # The first step overflows, and is left out.
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    return trainer


def test_transformers_trainer_with_a_scaler(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _scaling_trainer(tmp_path)
    expected.train()
    trainer = _scaling_trainer(tmp_path)
    traced = _traced_for(lambda: _plan(trainer), monkeypatch)
    names = {operator["name"] for operator in traced.data["operators"]}
    assert any("amp_foreach_non_finite_check" in name for name in names)
    trainer.train()
    assert acplan._apply.apply.has_plan(trainer.model)
    assert _losses(trainer) == _losses(expected) and len(_losses(trainer)) == 3
    assert _equal(trainer.model, expected.model)
    scale = trainer.accelerator.scaler.get_scale()
    assert scale == expected.accelerator.scaler.get_scale() < 2.0**30


def test_lightning_refuses_the_first_version_of_fsdp() -> None:
    lightning = pytest.importorskip("lightning")
    import acplan.lightning

    class FullyShardedDataParallel(nn.Linear):
        pass

    module = lightning.LightningModule()
    strategy = types.SimpleNamespace(model=FullyShardedDataParallel(2, 2))
    trainer = types.SimpleNamespace(strategy=strategy)
    callback = acplan.lightning.AcplanCallback("min")
    with pytest.raises(
        acplan.AcplanError, match="strategy: expected ModelParallelStrategy for a"
    ):
        callback.on_train_start(trainer, module)
