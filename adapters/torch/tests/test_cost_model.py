"""The cost model of training runs beside traces of the same models.

`acplan train show --implementation eager` computes what a Hugging Face model holds from
its configuration alone; a trace runs it, operator by operator. Parameters must be the
same number, and within 1%: what autograd keeps of a block, and the peak of the step with
all kept and with every block recomputed.
"""

import gzip
import json
import pathlib
import re
from typing import Any

import pytest
import torch

import acplan
from acplan._base.program import run_acplan

transformers = pytest.importorskip("transformers")

_DATA = pathlib.Path(__file__).parents[3] / "tests" / "data"
BATCH, LENGTH, HIDDEN, LAYERS = 4, 256, 256, 3
# As wide beside the hidden size as in models of today.
VOCABULARY = 16 * HIDDEN
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 3 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 64}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "mistral": _GROUPED,
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": _GROUPED,
    "qwen3_moe": _GROUPED | _EXPERTS | {"num_experts": 4},
    "mixtral": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": _EXPERTS
    | {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 64,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    },
    "gemma2": _GROUPED | {"query_pre_attn_scalar": 64, "sliding_window": 128},
    "gemma3_text": _GROUPED | {"query_pre_attn_scalar": 64, "sliding_window": 128},
    "olmo2": {"num_key_value_heads": 2},
    "phi3": {"num_key_value_heads": 2},
    "gpt2": {"n_inner": 3 * HIDDEN},
    "gpt_neox": {},
    "bloom": {},
}


def _config(kind: str) -> Any:
    sizes = _SIZES | ARCHITECTURES[kind]
    if kind in ("gpt2", "bloom"):  # they know no such key
        del sizes["intermediate_size"]
    config = transformers.AutoConfig.for_model(kind, **sizes)
    config.use_cache = False
    return config


def _traced(config: Any) -> tuple[torch.nn.Module, acplan.Trace]:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    traced = acplan.trace(
        model.train(),
        input_ids=ids,
        labels=ids,
        device="h100",
        # Without temporaries of its own.
        optimizer="adamw-fused",
        # So that gradients are there from the beginning.
        accumulate=2,
        # Not those of libraries of kernels, 64 MiB here.
        workspaces=False,
    )
    return model, traced


_BLOCK = re.compile(r"\.(?:layers|h)\.(\d+)$")


def _blocks(model: torch.nn.Module) -> dict[str, int]:
    """Returns the places of blocks, indexed by their names in traces."""
    root = type(model).__name__
    names = [name for name, _ in model.named_modules()]
    matches = ((f"{root}.{name}", _BLOCK.search(f".{name}")) for name in names)
    return {name: int(match[1]) for name, match in matches if match}


def _saved_bytes(data: dict[str, Any], block: str) -> int:
    """Returns the bytes that autograd keeps and that a call within the block saves first."""
    calls, modules, storages = data["calls"], data["modules"], data["storages"]
    bytes_, counted_storages = 0, set()
    for saved in data["saved"]:
        storage = saved["storage"]
        if storage in counted_storages or storages[storage]["category"] != "activation":
            continue
        counted_storages.add(storage)
        call = saved["call"]
        while call >= 0 and modules[calls[call]["module"]]["fqn"] != block:
            call = calls[call]["parent"]
        bytes_ += storages[storage]["bytes"] if call >= 0 else 0
    return bytes_


def _predicted(config_file: pathlib.Path, recompute: str) -> dict[str, Any]:
    said = run_acplan(
        f"train show {config_file} --gpu h100 --gpus 1 --zero 0 --gbs {BATCH} "
        f"--mbs {BATCH} --seq {LENGTH} --implementation eager --grad-dtype bf16 "
        f"--set optimizer_bytes=4 --recompute {recompute} --json".split()
    )
    answer: dict[str, Any] = json.loads(said)
    return answer


def _planned_peak(trace_file: pathlib.Path, blocks: list[str]) -> int:
    """Returns the peak of the step with every block recomputed as a whole."""
    plan = trace_file.with_name("plan.json")
    plan.write_text(
        json.dumps(
            {
                "format": "acplan.plan",
                "version": 1,
                "model": json.loads(trace_file.read_text())["model"]["name"],
                "memory_model": "trace",
                "modules": [{"fqn": b, "discard_ratio": 1} for b in blocks],
            }
        )
    )
    said = run_acplan(["simulate", f"{trace_file}", f"{plan}", "--json"])
    return int(json.loads(said)["planned"]["peak_bytes"])


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_memory_is_that_of_the_trace(kind: str, tmp_path: pathlib.Path) -> None:
    config = _config(kind)
    model, traced = _traced(config)
    trace_file = tmp_path / "trace.json"
    traced.save(trace_file)
    config_file = tmp_path / "config.json"
    config_file.write_text(json.dumps(config.to_dict()))

    without_recomputation = _predicted(config_file, "none")
    assert without_recomputation["parameters"] == sum(p.numel() for p in model.parameters())

    blocks = _blocks(model)
    assert len(blocks) == LAYERS
    for block, place in blocks.items():
        if place == 0:  # tables of positions are first saved in it
            continue
        per_layer = without_recomputation["saved_bytes_of_a_layer"]
        said = per_layer.get("moe", per_layer.get("dense"))
        assert said == pytest.approx(_saved_bytes(traced.data, block), rel=0.01)

    peak = without_recomputation["stages"][0]["total_bytes"]
    assert peak == pytest.approx(traced.peak_bytes, rel=0.01)

    with_recomputation = _predicted(config_file, "full")["stages"][0]["total_bytes"]
    assert with_recomputation == pytest.approx(
        _planned_peak(trace_file, list(blocks)), rel=0.01
    )
    assert with_recomputation < peak


def test_parameters_are_those_that_the_program_is_held_to() -> None:
    """Counts the modules of each configuration; a C++ test holds acplan to the counts."""
    counts = json.loads(
        gzip.decompress((_DATA / "training/config_counts.json.gz").read_bytes())
    )
    for one in counts:
        kind = one["config"]["model_type"]
        config = transformers.AutoConfig.for_model(
            kind, **{k: v for k, v in one["config"].items() if k != "model_type"}
        )
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert parameters == one["parameters"], one["config"]
