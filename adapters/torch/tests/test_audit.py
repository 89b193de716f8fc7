"""acplan.audit on configurations of trainers, and the steps that the trainers' own code makes of
them."""

import collections
import functools
import pathlib

import pytest

import acplan
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
    assert audit.effect.peak_bytes == measured.peak_bytes
    assert collections.Counter(audit.data["reruns"]) == measured.reruns


def test_an_audit_compares_the_configuration_with_better_ones(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("base_model: x\ngradient_checkpointing: true\n")
    audit = acplan.audit(_trace(), path, **_QUICK)
    assert audit.fits
    assert audit.change_words == "set use_reentrant to false"
    assert audit.change is not None and audit.language is not None and audit.plan is not None
    assert audit.plan.recompute_ms <= audit.language.recompute_ms
    assert audit.language.recompute_ms <= audit.change.recompute_ms
    assert audit.change.recompute_ms < audit.effect.recompute_ms
    assert audit.broken_rule is None
    assert "use_reentrant" in audit.notes[0]
    assert "single change" in str(audit)
    assert repr(audit) == "<Audit of a configuration of axolotl>"


def test_a_budget_that_the_configuration_exceeds_is_no_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("gradient_checkpointing: false\n")
    audit = acplan.audit(_trace(), path, "axolotl", budget="90%", **_QUICK)
    assert not audit.fits
    assert audit.effect.recompute_ms == 0
    assert audit.change_words.startswith("checkpoint all blocks")


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
