"""The parameters that acplan counts in a config.json beside those of the modules.

Every `model_type` of transformers that has a causal language model, reads images and text, or
is an encoder with a decoder, is built on `meta` from its default configuration, whose
config.json `acplan train show` reads. Then each key of it is changed, one at a time, in a
model with fewer layers: the count must follow, or the file must be refused. All parts of a
model count: its text model, and the towers that images pass.

    ACPLAN=... PYTHONPATH=. python tests/compare_configs.py

writes docs/measured/configs.csv, and ends with 1 if a count is wrong. With names of types
after it, it prints only those rows, and each variant that is wrong. Needs transformers, and
no network.
"""

import copy
import dataclasses
import logging
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import json

import torch
import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from acplan import AcplanError
from acplan._base.program import run_acplan
from tables import Table, print_versions

# Sizes that a type's default configuration lacks.
_OVERRIDES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128, "num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8},
}
# A type that has images, or an encoder, is built with them; the others without.
_CLASSES = {
    "AutoModelForImageTextToText": MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForSpeechSeq2Seq": MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    "AutoModelForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
_TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN_COUNTS = (
    "num_experts_per_tok",
    "experts_per_token",
    "moe_topk",
    "moe_k",
    "top_k_experts",
)
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_FEW_LAYERS = 6  # of the models whose keys are changed
_KEPT_KEYS = {"model_type", "transformers_version", "architectures", "dtype"}


@dataclasses.dataclass(frozen=True)
class Count:
    """The parameters of a model, and those of them that a token passes."""

    parameters: int
    active: int


@dataclasses.dataclass
class Outcome:
    """The variants of a type: as counted, refused, and wrong."""

    same: int = 0
    refused: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Row:
    """A type's default configuration: the count of its modules, None if transformers builds
    none, and what acplan answers."""

    count: Count | None
    answer: Count | str


def types() -> list[str]:
    """Returns the types with a causal language model, then encoders with a decoder, then those
    that read images."""
    classes = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText")
    return list(dict.fromkeys(name for kind in classes for name in _CLASSES[kind]))


def configuration_of(kind: str, **keys: Any) -> Any:
    """Returns a type's default configuration with these keys."""
    return transformers.CONFIG_MAPPING[kind](**{**_OVERRIDES.get(kind, {}), **keys})


def text_part(config: Any) -> Any:
    """Returns the configuration of the text model of a model of several parts."""
    for name in _TEXT_PARTS:
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "to_dict"):
            return text_part(part)
    return config


def count_modules(config: Any) -> Count:
    """Counts the modules that transformers builds from a configuration."""
    config = copy.deepcopy(config)
    kind = next(name for name, types in _CLASSES.items() if config.model_type in types)
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(config)
    parameters, experts = 0, 0
    for name, parameter in model.named_parameters():
        parameters += parameter.numel()
        if ".experts." in name:
            experts += parameter.numel()
    return Count(parameters, parameters - _idle(text_part(config), experts))


def _idle(text: Any, experts: int) -> int:
    """Returns the parameters of the experts that a token does not pass."""
    count = next((getattr(text, n) for n in _EXPERTS if getattr(text, n, None)), 1)
    chosen_count = next(
        (getattr(text, n) for n in _CHOSEN_COUNTS if getattr(text, n, None)), count
    )
    return int(experts * (count - chosen_count) // count)


def read(config: Any) -> Count | str:
    """Returns what acplan counts in a configuration's file, or why it refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "config.json"
        file.write_text(config.to_json_string(use_diff=True))
        command = f"train show {file} --gpu h200 --gpus 1 --gbs 1 --mbs 1 --seq 64"
        try:
            said = json.loads(run_acplan([*command.split(), "--budget", "1000TiB", "--json"]))
        except AcplanError as error:
            return str(error).replace(str(file), "config.json")
    return Count(round(said["parameters"]), round(said["active_parameters"]))


def compared(kind: str) -> Row:
    try:
        config = configuration_of(kind)
        count = count_modules(config)
    except Exception as error:  # whatever the type's own code raises without its sizes
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Row(None, f"not built by transformers: {lines[0][:120]}")
    return Row(count, read(config))


def _shrink(part: Any, layers: int) -> None:
    """Leaves a part of a configuration its first layers."""
    for name in (*_LAYERS, "depth"):
        count = getattr(part, name, None)
        if not isinstance(count, int) or count <= layers:
            continue
        setattr(part, name, layers)
        for key, value in part.to_dict().items():
            if isinstance(value, list) and len(value) == count:
                setattr(part, key, value[:layers])


def _smaller(kind: str) -> Any:
    """Returns a type's default configuration with few layers, if it can be built."""
    config = configuration_of(kind)
    try:
        if text_part(config) is config:
            little = config
            for name in _LAYERS:
                if getattr(config, name, 0) > _FEW_LAYERS:
                    little = configuration_of(kind, **{name: _FEW_LAYERS})
        else:
            little = copy.deepcopy(config)
            for part in _parts(little):
                _shrink(part, _FEW_LAYERS)
        count_modules(little)
    except Exception:  # a list of layers that has another length, for example
        return config
    return little


def _changes(value: object) -> list[object]:
    """Returns other values for a key."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value // 2] if value > 1 else [value + 1, value + 3]
    if isinstance(value, float):
        return [value * 2] if value else [0.5]
    if value is None:
        return [True, 8]
    if isinstance(value, list) and len(set(map(str, value))) > 1:
        return [value[::-1], [value[0]] * len(value)]
    return []


def _parts(config: Any) -> Iterator[Any]:
    """Yields the parts of a configuration whose keys are changed: its text, a tower, and the
    whole."""
    text = text_part(config)
    yield text
    if text is not config:
        yield config
        if hasattr(getattr(config, "vision_config", None), "to_dict"):
            yield config.vision_config


def _variants(kind: str) -> Iterator[tuple[str, Any]]:
    """Yields configurations with one key changed."""
    base = _smaller(kind)
    keys = {k: v for k, v in base.to_dict().items() if k != "model_type"}
    for place, part in enumerate(_parts(base)):
        for key, value in part.to_dict().items():
            for other in _changes(value) if key not in _KEPT_KEYS else []:
                try:
                    if text_part(base) is base:
                        changed = transformers.CONFIG_MAPPING[kind](**{**keys, key: other})
                    else:
                        changed = copy.deepcopy(base)
                        setattr(list(_parts(changed))[place], key, other)
                except Exception:  # a value that the configuration itself refuses
                    continue
                yield f"{part.model_type}.{key}={other}", changed


def try_variants(kind: str) -> Outcome:
    """Compares the variants of which transformers builds a model."""
    outcome = Outcome()
    for name, config in _variants(kind):
        try:
            count = count_modules(config)
        except Exception:  # sizes that do not go together
            continue
        answer = read(config)
        if isinstance(answer, str):
            outcome.refused += 1
        elif answer == count:
            outcome.same += 1
        else:
            outcome.wrong.append(f"{kind}: {name}: {count}, acplan {answer}")
    return outcome


def main() -> int:
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")
    names = sys.argv[1:]
    columns = "model_type parameters active acplan acplan_active same refused wrong".split()
    table = Table("configs", columns, is_partial=bool(names))
    read_types, refused, wrong = 0, 0, []
    for kind in names or types():
        row = compared(kind)
        count = dataclasses.astuple(row.count) if row.count else ("", "")
        if isinstance(row.answer, str):
            reason = row.answer if row.count is None else f"refused: {row.answer}"
            table.add(kind, *count, reason)
            refused += row.count is not None
            continue
        outcome = try_variants(kind)
        answer = dataclasses.astuple(row.answer)
        table.add(kind, *count, *answer, outcome.same, outcome.refused, len(outcome.wrong))
        read_types += 1
        wrong += outcome.wrong
        if row.answer != row.count:
            wrong.append(f"{kind}: {row.count}, acplan {row.answer}")
    print_versions("transformers")
    print(f"{read_types} types read, {refused} refused, {len(wrong)} counts wrong")
    print(*wrong, sep="\n")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
