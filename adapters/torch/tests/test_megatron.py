"""Flags of Megatron-LM, as `acplan emit` and `acplan audit` have them, in Megatron-Core."""

import collections
import functools
import importlib.util
import pathlib

import pytest

import acplan
from trainer_policies import TRAINERS, Truth, emitted, truth

if not importlib.util.find_spec("megatron"):
    pytest.skip("megatron-core is not installed", allow_module_level=True)

from megatron_gpt import MegatronGpt, discarded_results_count, inputs

_QUICK = ("--time-limit", "0.1")
# The gradient of a layer's result, which a reentrant checkpoint holds while the layer runs
# again.
_GRADIENT_BYTES = 2 * 128 * 256 * 4


@functools.cache
def _trace(experts: int | None = None) -> acplan.Trace:
    model = MegatronGpt(experts=experts)
    return acplan.trace(model, progress=False, optimizer="sgd", **inputs())


def _measured(text: str, experts: int | None = None) -> Truth:
    with discarded_results_count():
        return truth(
            MegatronGpt(experts=experts), inputs(), _trace(experts), TRAINERS["megatron"], text,
            optimizer="sgd",
        )  # fmt: skip


def test_attention_at_the_peak_holds_two_gradients_more(tmp_path: pathlib.Path) -> None:
    """The checkpoint holds the gradient of its result, and copies that of the queries."""
    path = tmp_path / "train.sh"
    path.write_text("--recompute-granularity selective --recompute-modules core_attn\n")
    model, arguments = MegatronGpt(layers=2, length=512), inputs(batch=1, length=512)
    trace = acplan.trace(model, progress=False, optimizer="sgd", **arguments)
    audit = acplan.audit(trace, path, time_limit=0.1)
    measured = truth(
        model, arguments, trace, TRAINERS["megatron"], path.read_text(), optimizer="sgd"
    )
    assert measured.peak_bytes - audit.effect.peak_bytes == 2 * 512 * 256 * 4


def _predicted(reruns: dict[str, int], text: str) -> collections.Counter[str]:
    """Returns the operators that are predicted beside those of the plain step, and what the
    code around `core_attn` runs in each layer: it hands a number over as a tensor, and lays
    the gradient of the queries out when it is complete, not before."""
    counts = collections.Counter(reruns)
    if "core_attn" in text:
        extra_counts = {
            "aten.lift_fresh.default": 1,
            "aten._local_scalar_dense.default": 2,
            "aten.new_empty_strided.default": 1,
            "aten.copy_.default": 1,
            "aten.clone.default": -1,
        }
        for name, count in extra_counts.items():
            counts[name] += 4 * count
    return _without_views(counts)


def _without_views(reruns: dict[str, int]) -> collections.Counter[str]:
    return collections.Counter(
        {name: count for name, count in reruns.items() if "view" not in name and count}
    )


@pytest.mark.parametrize(
    "flags",
    [
        "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        "--recompute-granularity selective --recompute-modules core_attn",
        "--recompute-granularity selective --recompute-modules mlp",
        "--recompute-granularity selective --recompute-modules layernorm",
        "--recompute-granularity selective --recompute-modules core_attn layernorm",
        "--recompute-granularity selective --recompute-modules core_attn mlp",
        "--recompute-granularity selective --recompute-modules layernorm mlp",
        "--recompute-granularity selective --recompute-modules core_attn layernorm mlp",
    ],
)
def test_megatron_does_what_the_audit_says(tmp_path: pathlib.Path, flags: str) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"RECOMPUTE_ARGS=(\n    {flags}\n)\n")
    audit = acplan.audit(_trace(), path, time_limit=0.1)
    measured = _measured(path.read_text())
    assert audit.trainer == "megatron"
    assert _predicted(audit.data["reruns"], flags) == _without_views(measured.reruns)
    # Neither attention nor norms are at the peak while they run again.
    is_exact = flags.endswith((" core_attn", " layernorm"))
    most_bytes = 0 if is_exact else _GRADIENT_BYTES
    assert 0 <= measured.peak_bytes - audit.effect.peak_bytes <= most_bytes


@pytest.mark.parametrize(
    "parts, gradients",
    [
        ("layernorm", 0),
        ("shared_experts", 0),
        ("layernorm shared_experts", 1),
        # The token dispatcher has tensors of its last run as attributes: then of the rerun.
        # Their graph holds a layer's input and the checkpoint's copy of it to the end of the
        # step, here of three layers. PyTorch's checkpoint that is not reentrant has no copy.
        ("moe", 2 * 3 + 1),
        ("layernorm moe", 2 * 3 + 1),
    ],
)
def test_experts_run_again_as_the_audit_says(
    tmp_path: pathlib.Path, parts: str, gradients: int
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"--recompute-granularity selective --recompute-modules {parts}\n")
    audit = acplan.audit(_trace(4), path, time_limit=0.1)
    measured = _measured(path.read_text(), 4)
    assert _without_views(audit.data["reruns"]) == _without_views(measured.reruns)
    further_bytes = measured.peak_bytes - audit.effect.peak_bytes
    # The shared experts' checkpoint is not at the peak.
    assert further_bytes == pytest.approx(gradients * _GRADIENT_BYTES, abs=_GRADIENT_BYTES / 20)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_megatron_does_what_the_flags_were_said_to_do(share: float) -> None:
    least = emitted(_trace(), "megatron", "min", *_QUICK)["budget_bytes"]
    budget = round(least + share * (_trace().peak_bytes - least))
    emission = emitted(_trace(), "megatron", str(budget), *_QUICK)
    measured = _measured(emission["text"])
    assert _predicted(emission["reruns"], emission["text"]) == _without_views(measured.reruns)
    assert 0 <= measured.peak_bytes - emission["peak_bytes"] <= _GRADIENT_BYTES
