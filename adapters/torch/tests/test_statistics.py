"""Statistics of a trace are those of PyTorch's estimators, or it is known why not."""

import pytest

from acplan import AcplanError, profile
from compare_statistics import compare, models, reasons

# These are equal for every module of every model.
_EXACT = {
    "param_per_module",
    "buffer_per_module",
    "output_per_module",
    "act_total",
    "fw_runtime",
    "sac.func_names",
    "sac.force_store_random",
    "order fw_pre",
    "order fw_post",
}
_FAILURES = {
    "bert": {"RuntimeEstimator"},
    "t5": {"RuntimeEstimator"},
    "noted": {"MemTracker"},
    "shared": {"MemTracker"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", models())
def test_statistics_are_pytorchs(name: str) -> None:
    comparison = compare(*models()[name]())
    failed = comparison.torchs.failed
    assert set(failed) == _FAILURES.get(name, set()), failed
    if "MemTracker" not in comparison.torchs.failed:
        modules = {module["fqn"] for module in comparison.profile["modules"]}
        assert modules == set(comparison.torchs.memory)
        peak_bytes = comparison.profile["measured"]["peak_bytes"]
        assert peak_bytes == comparison.torchs.peak_bytes == comparison.traced.peak_bytes
    for row in comparison.rows:
        if row.is_equal:
            continue
        is_forward = row.statistic.startswith(("pre_fw", "post_fw", "peak_fw"))
        assert not is_forward and row.statistic not in _EXACT, row
        assert reasons(row, comparison), row


def test_old_traces_have_no_profile() -> None:
    model, inputs = models()["custom"]()
    traced = compare(model, inputs).traced
    for call in traced.data["calls"]:
        del call["backward_start"], call["backward_end"]
    with pytest.raises(AcplanError, match="expected backward_start"):
        profile(traced)
