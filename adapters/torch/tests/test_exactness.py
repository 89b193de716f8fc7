"""The promise: what is predicted is what is re-traced, to the byte."""

from typing import Any

import pytest
import torch

from acplan import plan, trace
from acplan._verify.verify import verifying
from zoo import EXAMPLES, plans

# Each is measured under every other plan, and its neighbour under the others. The tests of C++
# compare the simulation with recorded measurements under all plans (write_goldens.py).
_MEASURED = [(name, None) for name in EXAMPLES] + [
    (name, torch.bfloat16) for name in ("gpt2", "unet", "custom", "shared")
]
_OF_FEW_PARAMETERS = ("unet", "custom", "noted", "writing", "shared")


@pytest.mark.filterwarnings("error:.*autocast")
@pytest.mark.parametrize(("name", "autocast"), _MEASURED)
def test_predicted_is_measured_at_every_operator(
    name: str, autocast: torch.dtype | None
) -> None:
    example = EXAMPLES[name]()
    model, inputs = example.on_meta()
    # No plan changes the update, which of many parameters takes long.
    optimizer = "adamw" if name in _OF_FEW_PARAMETERS else "sgd"
    options: dict[str, Any] = {"optimizer": optimizer, "autocast": autocast, **inputs}
    traced = trace(model, **options)
    names = " ".join(operator["name"] for operator in traced.data["operators"])
    assert ("_to_copy" in names) >= (autocast is not None)
    with verifying(model, model_trace=traced, **options) as verified:
        first = _MEASURED.index((name, autocast)) % 2
        for label, plan in list(plans(example, traced))[first::2]:
            if name == "shared" and autocast and "chance" in label:
                continue  # Casts of weights are among the operators of the first call.
            result = verified(plan)
            assert result.first_difference() is None, f"{label}: {result}"
            assert result.measured_bytes > 0
            assert len(result.measured) >= len(traced.data["operators"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("unet", {"clip_grad_norm": 1.0, "ema": True}),
        ("shared", {"optimizer": "adamw-fused"}),
        ("custom", {"autocast": "fp16", "grad_scaler": True, "clip_grad_norm": 1.0}),
        ("writing", {"optimizer": "adafactor"}),
    ],
)
def test_so_it_is_with_microbatches_and_updates(name: str, options: dict[str, Any]) -> None:
    example = EXAMPLES[name]()
    model, inputs = example.on_meta()
    options = {"accumulate": 2, **options}
    traced = trace(model, **options, **inputs)
    least = [("acplan", plan(traced, "min"))]
    some = list(plans(example, traced, seeds=1))[::3]
    with verifying(model, model_trace=traced, **options, **inputs) as verified:
        for label, trial_plan in (*some, *least):
            result = verified(trial_plan)
            assert result.first_difference() is None, f"{label}: {result}"
    assert least[0][1].peak_bytes == result.measured_bytes
