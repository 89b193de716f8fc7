"""Flags of Megatron-LM, as `acplan emit` and `acplan audit` have them, in Megatron-Core."""

import collections
import functools
import importlib.util
import pathlib

import pytest

import acplan
from trainer_policies import TRAINERS, emitted, truth

if not importlib.util.find_spec("megatron"):
    pytest.skip("megatron-core is not installed", allow_module_level=True)

from megatron_gpt import MegatronGpt, inputs

_QUICK = ("--time-limit", "0.1")
# The gradient of a layer's result, which a reentrant checkpoint holds while the layer runs
# again.
_GRADIENT_BYTES = 2 * 128 * 256 * 4


@functools.cache
def _trace() -> acplan.Trace:
    return acplan.trace(MegatronGpt(), progress=False, optimizer="sgd", **inputs())


def _without_views(reruns: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in reruns.items() if "view" not in name}


@pytest.mark.parametrize(
    "flags",
    [
        "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        "--recompute-granularity selective --recompute-modules mlp",
    ],
)
def test_megatron_does_what_the_audit_says(tmp_path: pathlib.Path, flags: str) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"RECOMPUTE_ARGS=(\n    {flags}\n)\n")
    audit = acplan.audit(_trace(), path, time_limit=0.1)
    measured = truth(
        MegatronGpt(), inputs(), _trace(), TRAINERS["megatron"], path.read_text(),
        optimizer="sgd",
    )  # fmt: skip
    assert audit.trainer == "megatron"
    assert _without_views(audit.data["reruns"]) == _without_views(measured.reruns)
    assert 0 <= measured.peak_bytes - audit.effect.peak_bytes <= _GRADIENT_BYTES


@pytest.mark.parametrize("share", [0.5])
def test_megatron_does_what_the_flags_were_said_to_do(share: float) -> None:
    least = emitted(_trace(), "megatron", "min", *_QUICK)["budget_bytes"]
    budget = round(least + share * (_trace().peak_bytes - least))
    emission = emitted(_trace(), "megatron", str(budget), *_QUICK)
    measured = truth(
        MegatronGpt(), inputs(), _trace(), TRAINERS["megatron"], emission["text"],
        optimizer="sgd",
    )  # fmt: skip
    reruns = collections.Counter(_without_views(emission["reruns"]))
    assert reruns == collections.Counter(_without_views(measured.reruns))
    assert 0 <= measured.peak_bytes - emission["peak_bytes"] <= _GRADIENT_BYTES
