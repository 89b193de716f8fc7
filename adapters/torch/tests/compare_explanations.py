"""Where the memory of real steps goes, and what levers do to it, each traced.

    ACPLAN=... PYTHONPATH=. python tests/compare_explanations.py

prints docs/measured/explain.md; with names of models after it, only those.
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
from pages import start_page

_PAGE = """
What `acplan.explain` says of six training steps (roofline of an A100, AdamW unless said
otherwise). *At the peak* is what is in memory when most is, without a plan; the kinds add up
to the peak, to the byte, which the script demands. *No plan discards* is what the program
holds then, or what the operator itself reads and makes. The least budget is the smallest that
a plan was found for within five seconds; where no lower one exists, *proven*.

Every lever that there is was tried on every model. Each row of them is a trace of its own, and
a search for the least budget on it; none is estimated. *Step* is the run-time of an iteration
without a plan.
"""

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

    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
        use_cache=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
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


def _rows(explanation: acplan.Explanation) -> Iterator[str]:
    baseline, least = explanation.data["baseline"], explanation.data["least"]
    for account in (baseline, least):
        peak = account["peak_bytes"]
        assert sum(account["by_kind"].values()) == peak
        for name in ("modules", "operators", "lines"):
            assert sum(row["bytes"] for row in account[name]) == peak
    proven = ", proven" if least["proven"] else ""
    yield f"| | at the peak | at the least budget{proven} |"
    yield "|---|---:|---:|"
    yield f"| peak | {size(baseline['peak_bytes'])} | {size(least['peak_bytes'])} |"
    for kind, count in baseline["by_kind"].items():
        if count or least["by_kind"][kind]:
            yield f"| {kind} | {size(count)} | {size(least['by_kind'][kind])} |"
    fixed = size(baseline["fixed_bytes"]), size(least["fixed_bytes"])
    yield f"| every plan keeps | {fixed[0]} | {fixed[1]} |"
    yield ""
    for name, account in (("The peak", baseline), ("The least budget", least)):
        at, most = account["peak"], account["operators"][:3]
        origins = "; ".join(
            f"{row['operator'] or row['phase']} ({row['phase']}) {size(row['bytes'])}"
            for row in most
        )
        where = f"`{at['operator']}` ({at['phase']})"
        where += f", at `{at['source']}`" if at["source"] else ""
        yield f"{name} is at {where}. Most is from {origins}."
        yield ""


def _lever_rows(levers: tuple[Measured, ...]) -> Iterator[str]:
    yield "| lever | peak without a plan | least budget | step ms |"
    yield "|---|---:|---:|---:|"
    for row in levers:
        if row.peak_bytes is None or row.least_bytes is None:
            why_not = row.why_not.partition(". ")[0]
            yield f"| {row.lever} | not measured: {why_not} | | |"
            continue
        proven = " (proven)" if row.is_least_proven else ""
        least = f"{size(row.least_bytes)}{proven}"
        yield (f"| {row.lever} | {size(row.peak_bytes)} | {least} | {row.step_ms:,.1f} |")
    yield ""


def main(names: list[str]) -> None:
    start_page("Where memory goes", _PAGE, "transformers", "peft")
    for name in names or _SUBJECTS:
        title, make = _SUBJECTS[name]
        model, inputs = make()
        explanation = acplan.explain(model, progress=False, **inputs)
        print(f"## {title}\n")
        print("\n".join([*_rows(explanation), *_lever_rows(explanation.levers)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
