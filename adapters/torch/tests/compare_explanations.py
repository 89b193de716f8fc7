"""Where the memory of real steps goes, and what levers do to it, each traced.

    ACPLAN=... PYTHONPATH=. python tests/compare_explanations.py

writes docs/measured/explain.csv, explain_places.csv and explain_levers.csv; with names of
models after it, it prints only those.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers

import acplan
from acplan._advise.explain import Measured
from acplan._files.display import size
from models import MODELS
from tables import Table, print_versions
from zoo import llama_1b

Inputs = dict[str, Any]
Subject = tuple[str, Callable[[], tuple[torch.nn.Module, Inputs]]]


def _on_meta(name: str) -> Callable[[], tuple[torch.nn.Module, Inputs]]:
    return lambda: MODELS[name][0]().on_meta()


def _clip() -> tuple[torch.nn.Module, Inputs]:
    with torch.device("meta"):
        model = transformers.CLIPModel(transformers.CLIPConfig())
        inputs = {
            "input_ids": torch.zeros(64, 77, dtype=torch.long),
            "pixel_values": torch.zeros(64, 3, 224, 224),
        }
    return model, {**inputs, "return_loss": True}


def _distilbert() -> tuple[torch.nn.Module, Inputs]:
    with torch.device("meta"):
        model = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig())
        ids = torch.zeros(32, 512, dtype=torch.long)
    return model, {"input_ids": ids, "labels": ids}


def _lora() -> tuple[torch.nn.Module, Inputs]:
    import peft

    with torch.device("meta"):
        model = llama_1b()
        lora = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
        model = peft.get_peft_model(model, lora, low_cpu_mem_usage=True)
        ids = torch.zeros(4, 2048, dtype=torch.long)
    return model, {"input_ids": ids, "labels": ids}


_SUBJECTS: dict[str, Subject] = {
    "distilbert": (
        "DistilBERT, vocabulary 30,522, 32 x 512, fp32",
        _distilbert,
    ),
    "gpt2": (
        "GPT-2, 8 x 1024, fp32",
        _on_meta("GPT-2 small, 8 x 1024 (tied weights)"),
    ),
    "resnet50": (
        "ResNet-50, 16 x 224 x 224, fp32",
        _on_meta("ResNet-50, 16 x 224"),
    ),
    "clip": (
        "CLIP ViT-B/32, 64 pairs, fp32",
        _clip,
    ),
    "lora": (
        "LoRA (r = 16, q and v) of a Llama of 1.2 billion, 4 x 2048, bf16",
        _lora,
    ),
    "llama3_8b": (
        "Llama-3-8B, 1 x 4096, bf16",
        _on_meta("Llama-3-8B, bf16, 1 x 4096"),
    ),
}


def _rows(explanation: acplan.Explanation) -> Iterator[tuple[str, str, str]]:
    """Yields kinds of memory at the peak without a plan and at the least budget."""
    baseline, least = explanation.data["baseline"], explanation.data["least"]
    for account in (baseline, least):
        peak = account["peak_bytes"]
        assert sum(account["by_kind"].values()) == peak
        for name in ("modules", "operators", "lines"):
            assert sum(row["bytes"] for row in account[name]) == peak
    yield "peak", size(baseline["peak_bytes"]), size(least["peak_bytes"])
    for kind, count in baseline["by_kind"].items():
        if count or least["by_kind"][kind]:
            yield kind, size(count), size(least["by_kind"][kind])
    yield "every plan keeps", size(baseline["fixed_bytes"]), size(least["fixed_bytes"])


def _places(explanation: acplan.Explanation) -> Iterator[tuple[str, ...]]:
    """Yields the operators of both peaks, and the operators that made most of the memory."""
    for name in ("baseline", "least"):
        account = explanation.data[name]
        at, most = account["peak"], account["operators"][:3]
        origins = "; ".join(
            f"{row['operator'] or row['phase']} ({row['phase']}) {size(row['bytes'])}"
            for row in most
        )
        peak = "peak" if name == "baseline" else "least budget"
        yield peak, at["operator"], at["phase"], at["source"], origins


def _lever_rows(levers: tuple[Measured, ...]) -> Iterator[tuple[str, ...]]:
    for row in levers:
        if row.peak_bytes is None or row.least_bytes is None:
            why_not = row.why_not.partition(". ")[0]
            yield row.lever, f"not measured: {why_not}"
            continue
        proven = " (proven)" if row.is_least_proven else ""
        least = f"{size(row.least_bytes)}{proven}"
        yield row.lever, size(row.peak_bytes), least, f"{row.step_ms:.1f}"


def main(names: list[str]) -> None:
    print_versions("transformers", "peft")
    is_partial = bool(names)
    kinds = ("model", "kind", "at the peak", "at the least budget")
    kinds_table = Table("explain", kinds, is_partial=is_partial)
    places = ("model", "at", "operator", "phase", "source", "most")
    places_table = Table("explain_places", places, is_partial=is_partial)
    levers = ("model", "lever", "peak without a plan", "least budget", "step ms")
    levers_table = Table("explain_levers", levers, is_partial=is_partial)
    for name in names or _SUBJECTS:
        title, make = _SUBJECTS[name]
        model, inputs = make()
        explanation = acplan.explain(model, progress=False, **inputs)
        for row in _rows(explanation):
            kinds_table.add(title, *row)
        for place in _places(explanation):
            places_table.add(title, *place)
        for lever in _lever_rows(explanation.levers):
            levers_table.add(title, *lever)


if __name__ == "__main__":
    main(sys.argv[1:])
