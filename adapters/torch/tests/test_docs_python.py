"""The examples of docs/python, each of which runs as it stands there."""

import pathlib
import re
from typing import Any

import pytest
import torch
import transformers

import acplan

_PAGES = pathlib.Path(__file__).parents[3] / "docs" / "python"
# Needs PyTorch's planner, a process group, a trainer, an objective of its own, or a table of
# plans (test_lengths.py).
_NOT_RUN = (
    "parse_module_info", "fully_shard", "PipelineStage", "lightning.Trainer",
    "auto_checkpoint(trainer", "PlannedModule(", "(model, table, inputs_of", "train_step()",
    "parallelize=shard",
)  # fmt: skip


def _examples() -> list[Any]:
    """Returns the blocks of Python on the pages."""
    blocks = []
    for page in sorted(_PAGES.glob("*.md")):
        examples = re.findall(
            r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
        )
        for place, block in enumerate(examples):
            if not any(word in block for word in _NOT_RUN):
                blocks.append(pytest.param(block, id=f"{page.stem}-{place}"))
    return blocks


def _gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=2, vocab_size=64, n_positions=256, use_cache=False
    )
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model


_PlannedStep = tuple[acplan.Trace, acplan.Plan]


@pytest.fixture(scope="module")
def planned_step() -> _PlannedStep:
    trace = acplan.trace(_gpt2(), **_inputs())
    return trace, acplan.plan(trace, "min")


def _inputs() -> dict[str, torch.Tensor]:
    tokens = torch.zeros(8, 256, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens}


def _names(planned_step: _PlannedStep, folder: pathlib.Path) -> dict[str, Any]:
    """Returns the names that the examples use. The files are in the folder."""
    trace, plan = planned_step
    for name in ("plan.json", "other.json"):
        plan.save(folder / name)
    (folder / "config.yaml").write_text("base_model: gpt2\ngradient_checkpointing: true\n")
    model, inputs = _gpt2(), _inputs()
    return {
        "acplan": acplan,
        "inputs": inputs,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "plan": plan,
        "tokens": inputs["input_ids"],
        "torch": torch,
        "trace": trace,
        "x": inputs["input_ids"][:1, :16],
    }


def test_pages_have_examples() -> None:
    assert len(_examples()) > 15


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("block", _examples())
def test_an_example_runs(
    block: str,
    planned_step: _PlannedStep,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(block, _names(planned_step, tmp_path))
