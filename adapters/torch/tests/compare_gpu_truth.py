"""Compares predicted times with measurements on GPUs that others published.

    PYTHONPATH=.:tests python tests/compare_gpu_truth.py [--every N] TABLE.csv[.gz]...

in adapters/torch. A table has the columns source, gpu, model, build, batch, size, precision,
checkpointing, compiled, metric, value and note; rows of metrics op_ms, forward_ms, backward_ms
and step_ms are compared. Rows that cannot be (an operator, GPU or model that is not known here)
are counted. Rows of timm need timm 0.6.7 (`pip install --no-deps timm==0.6.7 torchvision`), and
every Nth model is traced.

Prints a table in Markdown: for each source, kind of row and GPU how many rows there are, the
median of predicted / measured, and median and 90th percentile of the error; of operators those
above .1 ms. The last column is the median error after one factor for the group: what is left
if a GPU was measured once.
"""

import argparse
import collections
import csv
import functools
import gzip
import io
import math
import pathlib
import statistics
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from acplan import Device, trace
from gpu_truth_operators import GPUS, Row, module_ms, operator_ms

_LEAST_MS = 0.1


def _rows(path: pathlib.Path) -> Iterator[Row]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    yield from csv.DictReader(io.StringIO(text.decode()))


def _timm_ms(row: Row, device: Device) -> float:
    # Its operators for images need a build of torchvision for this PyTorch.
    sys.modules.setdefault(
        "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
    )
    import timm

    model = timm.create_model(row["model"]).train()
    size, batch = int(row["size"]), int(row["batch"])
    images = torch.empty(batch, 3, size, size, device="meta")
    if row["precision"].endswith("nhwc"):
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.empty(batch, dtype=torch.long, device="meta")
    criterion = nn.CrossEntropyLoss()
    data = trace(
        model,
        images,
        device=device,
        autocast="fp16",
        optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True),
        loss_fn=lambda output: criterion(output, labels.to(output.device)),
        source=False,
    ).data
    return math.fsum(operator["runtime_ms"] for operator in data["operators"])


_CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_large": (
        "bert",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "gpt2_large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt3_27": ("gpt2", {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048}),
    "opt_13": (
        "opt",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "word_embed_proj_dim": 2048,
        },
    ),
}


@functools.cache
def _language_model_ms(
    name: str, batch: int, length: int, device: Device
) -> tuple[float, float]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    kind, settings = _CONFIGURATIONS[name]
    config = AutoConfig.for_model(kind, **settings)
    config._attn_implementation = "eager"
    auto = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
        tokens = torch.empty(batch, length, dtype=torch.long)
    data = trace(
        model, input_ids=tokens, labels=tokens, device=device, optimizer=None, source=False
    ).data
    times = [operator["runtime_ms"] for operator in data["operators"]]
    forward, backward = data["forward_end"], data["backward_end"]
    return math.fsum(times[:forward]), math.fsum(times[forward:backward])


def _predicted_ms(row: Row) -> float | None:
    device = GPUS.get(row["gpu"])
    if device is None:
        return None
    if row["source"] == "timm" and row["metric"] == "step_ms":
        return _timm_ms(row, device)
    if row["metric"] in ("forward_ms", "backward_ms") and row["model"] in _CONFIGURATIONS:
        size = int(row["batch"]), int(row["size"])
        forward, backward = _language_model_ms(row["model"], *size, device)
        return forward if row["metric"] == "forward_ms" else backward
    if row["metric"] == "op_ms":
        is_single = "{" not in row["build"]
        return operator_ms(row, device) if is_single else module_ms(row, device)
    return None


def _kind(row: Row) -> str:
    if row["source"] == "timm":
        return "step, " + row["precision"]
    if row["metric"] == "op_ms":
        mode = row["note"].partition(",")[0]
        return f"{row['model']}, {mode}" if mode else row["model"]
    return row["metric"].removesuffix("_ms")


def _line(name: str, ratios: list[float]) -> str:
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    bias = statistics.median(ratios)
    remaining = statistics.median(abs(ratio / bias - 1) for ratio in ratios)
    worst = errors[math.ceil(0.9 * len(errors)) - 1]
    median = statistics.median(errors)
    return f"| {name} | {len(ratios)} | {bias:.2f} | {median:.1%} | {worst:.1%} | {remaining:.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--csv", type=pathlib.Path, help="writes each row's prediction")
    parser.add_argument("tables", nargs="+", type=pathlib.Path)
    flags = parser.parse_args()
    groups = collections.defaultdict(list)
    left_out: collections.Counter[str] = collections.Counter()
    predictions = []
    rows = [row for path in flags.tables for row in _rows(path)]
    rows = [row for row in rows if row["metric"].endswith("_ms")]
    models = sorted({row["model"] for row in rows if row["source"] == "timm"})
    traced_models = set(models[:: flags.every])
    for row in rows:
        if row["source"] == "timm" and row["model"] not in traced_models:
            continue
        measured = float(row["value"])
        if row["metric"] == "op_ms" and measured < _LEAST_MS:
            continue
        try:
            predicted = _predicted_ms(row)
        except Exception as error:  # of packages that are not there, or do not run
            print(f"{row['model']}: {error}".splitlines()[0][:150], file=sys.stderr)
            predicted = None
        if predicted is None:
            left_out[f"{row['source']}: {row['model']} on {row['gpu']}"] += 1
            continue
        ratio = predicted / measured
        keys = row["source"], _kind(row), row["gpu"]
        groups[keys].append(ratio)
        predictions.append(
            (*keys, row["model"], row["build"], row["size"], measured, predicted)
        )
    print(
        "| source, kind, GPU | rows | predicted / measured | error, median | 90% | one factor |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    sources = sorted({keys[0] for keys in groups})
    for source in sources:
        for keys, ratios in sorted(groups.items()):
            if keys[0] == source:
                print(_line(", ".join(keys), ratios))
        every = [r for keys, ratios in groups.items() if keys[0] == source for r in ratios]
        print(_line(f"**{source}**", every))
    if flags.csv:
        with flags.csv.open("w") as file:
            csv.writer(file).writerows(predictions)
    for name, count in left_out.most_common():
        print(f"not compared: {count} of {name}", file=sys.stderr)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
