"""acplan.audit on configurations of trainers, and the steps that trainers' own code makes of
them."""

import collections
import functools
import pathlib
from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import acplan
from test_emit import _Net as Net
from trainer_policies import TRAINERS, truth
from zoo import EXAMPLES

_QUICK = {"time_limit": 0.1}


@functools.cache
def _trace() -> acplan.Trace:
    example = EXAMPLES["llama"]()
    return acplan.trace(
        example.make().train(), progress=False, optimizer="sgd", **example.inputs()
    )


def _arguments(options: str) -> str:
    return (
        "from transformers import TrainingArguments\n\n"
        f"args = TrainingArguments(\n    gradient_checkpointing=True,\n    {options}\n)\n"
    )


@pytest.mark.parametrize(
    "options",
    [
        'gradient_checkpointing_kwargs={"use_reentrant": True},',
        'gradient_checkpointing_kwargs={"use_reentrant": False, "every_n_layers": 2},',
    ],
)
def test_a_trainer_does_what_the_audit_says(tmp_path: pathlib.Path, options: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(_arguments(options))
    audit = acplan.audit(_trace(), path, **_QUICK)
    example = EXAMPLES["llama"]()
    measured = truth(
        example.make().train(), example.inputs(), _trace(), TRAINERS["transformers"],
        path.read_text(), optimizer="sgd",
    )  # fmt: skip
    assert audit.trainer == "transformers"
    assert collections.Counter(audit.data["reruns"]) == measured.reruns
    # A reentrant checkpoint holds the gradient of its result while it runs again.
    further_bytes = measured.peak_bytes - audit.effect.peak_bytes
    assert 0 <= further_bytes <= 40_000 if "True" in options else further_bytes == 0


def test_an_audit_compares_the_configuration_with_better_ones(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("base_model: x\ngradient_checkpointing: true\n")
    audit = acplan.audit(_trace(), path, **_QUICK)
    assert audit.fits
    assert audit.change_words
    assert audit.change is not None and audit.language is not None and audit.plan is not None
    assert audit.plan.recompute_ms <= audit.language.recompute_ms
    assert audit.language.recompute_ms <= audit.change.recompute_ms
    assert audit.change.recompute_ms < audit.effect.recompute_ms
    assert audit.broken_rule is None
    assert any("axolotl sets use_reentrant" in note for note in audit.notes)
    assert "single change" in str(audit)
    assert repr(audit) == "<Audit of a configuration of axolotl>"


def test_a_budget_that_the_configuration_exceeds_is_no_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("gradient_checkpointing: false\n")
    audit = acplan.audit(_trace(), path, "axolotl", budget="96%", **_QUICK)
    assert not audit.fits
    assert audit.effect.recompute_ms == 0
    assert audit.change_words == "checkpoint all blocks"


def test_the_checkpoints_of_a_model_are_audited() -> None:
    example = EXAMPLES["llama"]()
    model: Any = example.make().train()
    assert acplan.audit(_trace(), model, **_QUICK).effect.recompute_ms == 0
    model.activation_checkpointing_enable(every_n_layers=2)
    audit = acplan.audit(_trace(), model, **_QUICK)
    assert len(audit.data["units"]) == 2
    model.activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": True}
    )
    audit = acplan.audit(_trace(), model, **_QUICK)
    assert not audit.data["stops_early"]
    model.model.layers[1].gradient_checkpointing = False
    model.model.layers[2].gradient_checkpointing = False
    model.model.layers[0].gradient_checkpointing = False
    assert acplan.audit(_trace(), model, **_QUICK).effect.recompute_ms == 0
    model.model.layers[1].gradient_checkpointing = True
    with pytest.raises(acplan.AcplanError, match="every n-th layer"):
        acplan.audit(_trace(), model)


def test_wrapped_modules_of_a_model_are_audited() -> None:
    model = Net()
    for place in (0, 2):
        model.layers[place] = checkpoint_wrapper(model.layers[place])
    trace = acplan.trace(model, progress=False, optimizer="sgd", x=torch.randn(64, 32))
    audit = acplan.audit(trace, model, **_QUICK)
    assert audit.trainer == "torch"
    assert [name[-8:] for name in audit.data["units"]] == ["layers.0", "layers.2"]
    assert audit.effect.recompute_ms > 0
    model.layers[3] = checkpoint_wrapper(model.layers[3], early_stop=False)
    with pytest.raises(acplan.AcplanError, match="without the option early_stop=False"):
        acplan.audit(trace, model)


def test_wrong_arguments_are_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("gradient_checkpointing: true\n")
    with pytest.raises(acplan.AcplanError, match="expected keys of one trainer"):
        acplan.audit(_trace(), path)
    with pytest.raises(acplan.AcplanError, match="nearest: trl"):
        acplan.audit(_trace(), path, "trll")
    with pytest.raises(acplan.AcplanError, match="found point"):
        acplan.audit(_trace(), path, "trl", point=3)
    with pytest.raises(acplan.AcplanError, match="expected a Trace or a path"):
        acplan.audit(3, path)  # type: ignore[arg-type]
    with pytest.raises(acplan.AcplanError, match="expected a file's path"):
        acplan.audit(_trace(), 3)  # type: ignore[arg-type]
