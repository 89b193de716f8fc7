"""The promise: what is predicted is what is measured, to the byte."""

import pytest
from acplan import trace, verify

from zoo import EXAMPLES, plans


@pytest.mark.parametrize("name", EXAMPLES)
def test_predicted_is_measured_at_every_operator(name: str) -> None:
    example = EXAMPLES[name]()
    model, inputs = example.on_meta()
    traced = trace(model, **inputs)
    for label, plan in plans(example, traced):
        result = verify(model, plan, of=traced, **inputs)
        assert result.first_difference() is None, f"{label}: {result}"
        assert result.measured_bytes > 0
        assert len(result.measured) > len(traced.data["operators"])
