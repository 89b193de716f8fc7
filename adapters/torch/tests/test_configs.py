"""A sample of compare_configs.py, which compares every type of transformers."""

import json
import pathlib
import subprocess

import pytest

pytest.importorskip("transformers")

from acplan._base.program import find_program
from compare_configs import compared, configuration_of, read, try_variants


@pytest.mark.parametrize(
    "kind", ["qwen3_next", "nemotron_h", "jamba", "glm_moe_dsa", "llama4", "minimax_m2"]
)
def test_parameters_are_those_of_the_modules(kind: str) -> None:
    row = compared(kind)
    assert row.count is not None
    assert row.answer == row.count


def test_each_key_that_changes_the_shape_counts_or_is_refused() -> None:
    outcome = try_variants("lfm2")
    assert outcome.wrong == []
    assert outcome.same > 20


def test_hybrids_are_not_taken_for_attention_under_another_name(tmp_path: pathlib.Path) -> None:
    for kind, name in (("qwen3_next", "qwen3_moe"), ("jamba", "mixtral"), ("lfm2", "llama")):
        keys = json.loads(configuration_of(kind).to_json_string(use_diff=True))
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps(keys | {"model_type": name}))
        process = subprocess.run(
            [find_program(), "train", "show", file, "--gpu", "h200", "--gpus", "1"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 2
        assert len(process.stderr.strip().splitlines()) == 1


def test_encoders_with_decoders_are_refused() -> None:
    answer = read(configuration_of("longt5"))
    assert isinstance(answer, str)
    assert "encoders with decoders" in answer
