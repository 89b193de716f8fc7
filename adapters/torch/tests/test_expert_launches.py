"""The operators of layers with experts in transformers, beside those of the measured table."""

import csv
import pathlib

import pytest

from expert_launches import transformers_launches

pytest.importorskip("transformers")

_TABLE = pathlib.Path(__file__).parents[3] / "docs/measured/expert_launches.csv"


def test_counts_are_those_of_the_table() -> None:
    with open(_TABLE, newline="") as file:
        rows = {
            (row["layer"], row["products"], int(row["experts of a rank"])): row
            for row in csv.DictReader(file)
        }
    forward = {}
    for experts in (4, 8):
        for name, products, launches in transformers_launches(experts):
            row = rows[name, products, experts]
            # Releases of torch and transformers differ by a few operators.
            assert launches.forward == pytest.approx(int(row["forward"]), rel=0.15)
            assert launches.backward == pytest.approx(int(row["backward"]), rel=0.15)
            forward[name, products, experts] = launches.forward
    for name in ("Mixtral", "Qwen3-MoE", "DeepSeek-V3"):
        assert forward[name, "grouped_mm", 4] == forward[name, "grouped_mm", 8]
        # Two products of each of four experts, and more.
        assert forward[name, "eager", 8] - forward[name, "eager", 4] > 4 * 2
