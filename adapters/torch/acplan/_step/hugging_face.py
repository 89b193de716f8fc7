"""Training steps of transformers models, made from a configuration alone."""

import dataclasses
import difflib
import importlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from acplan._base.errors import AcplanError, reason_of
from acplan._fakes.real_values import Limits, require_values
from acplan._files.json_files import read_json
from acplan._step.autocast import DTYPES
from acplan._step.training_step import TrainingStep


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a step's inputs. If `seq` is not given, it is 1024, or less if the model
    takes no more; `image` is then that of the configuration."""

    batch: int
    seq: int | None = None
    image: int | None = None


@dataclasses.dataclass(frozen=True)
class _Task:
    auto_class: str
    labels: Callable[[Any, Sizes], dict[str, torch.Tensor]]


def _class_labels(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"labels": torch.zeros(sizes.batch, dtype=torch.long)}


def _token_labels(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"labels": torch.zeros(sizes.batch, _length(config, sizes), dtype=torch.long)}


def _span_labels(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    place = torch.zeros(sizes.batch, dtype=torch.long)
    return {"start_positions": place, "end_positions": place.clone()}


def _pixel_labels(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    height, width = _image_size(config, sizes)
    return {"labels": torch.zeros(sizes.batch, height, width, dtype=torch.long)}


# In the order in which they are tried for a configuration without `architectures`.
TASKS: Mapping[str, _Task] = {
    "speech-seq2seq": _Task("AutoModelForSpeechSeq2Seq", _token_labels),
    "seq2seq-lm": _Task("AutoModelForSeq2SeqLM", _token_labels),
    "masked-lm": _Task("AutoModelForMaskedLM", _token_labels),
    "causal-lm": _Task("AutoModelForCausalLM", _token_labels),
    "image-classification": _Task("AutoModelForImageClassification", _class_labels),
    "semantic-segmentation": _Task("AutoModelForSemanticSegmentation", _pixel_labels),
    "audio-classification": _Task("AutoModelForAudioClassification", _class_labels),
    "sequence-classification": _Task("AutoModelForSequenceClassification", _class_labels),
    "token-classification": _Task("AutoModelForTokenClassification", _token_labels),
    "question-answering": _Task("AutoModelForQuestionAnswering", _span_labels),
}


def step_of_config(
    name: str,
    sizes: Sizes,
    changes: Sequence[str] = (),
    *,
    dtype: str = "float32",
    task: str = "auto",
    has_weights: bool = False,
) -> TrainingStep:
    """Returns a model on the meta device, without weights, and inputs of its task; or, with
    `has_weights`, a model on the CPU, with random weights and random inputs.

    name:    a configuration: a folder or JSON file, JSON text, a model type of transformers
             such as `gpt2` (with the type's defaults), else the name of a repository of the
             hub.
    changes: `key=value`, with dots for inner parts, values as JSON or as text.
    task:    a key of TASKS; `auto` is that of the configuration's `architectures`, else the
             first one that the model type is made for.
    """
    transformers = _transformers()
    config = _config(transformers, name)
    for change in changes:
        _change(config, change)
    for part in (config, config.get_text_config()):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    if sizes.image is not None and hasattr(_vision(config), "image_size"):
        _vision(config).image_size = sizes.image
    task_name, model_class = _model_class(transformers, config, task)
    for token in ("pad_token_id", "decoder_start_token_id"):
        if getattr(config, token, None) is None:
            setattr(config, token, 0)
    with torch.device("meta"):
        model = model_class._from_config(config, dtype=DTYPES[dtype])
        main = _main_input(model, config, sizes, DTYPES[dtype])
        kwargs = {model.main_input_name: main, **TASKS[task_name].labels(config, sizes)}
    if has_weights:
        require_values(model, kwargs.values(), Limits.of_the_machine(), is_empty=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = model_class._from_config(config, dtype=DTYPES[dtype])
            most = getattr(config.get_text_config(), "vocab_size", None) or 1
            kwargs = {name: _random_like(name, t, most) for name, t in kwargs.items()}
    model_facts = {"batch": sizes.batch, "dtype": dtype}
    if model.main_input_name == "input_ids":
        model_facts["seq"] = _length(config, sizes)
    return TrainingStep(model, kwargs=kwargs, model_facts=model_facts)


def _random_like(name: str, tensor: torch.Tensor, most: int) -> torch.Tensor:
    """Returns random tokens of the whole vocabulary, random pixels or samples, or labels that
    any task has."""
    if tensor.is_floating_point():
        return torch.randn(tensor.shape).to(tensor.dtype)
    if name != "input_ids":
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return torch.randint(most, tensor.shape, dtype=tensor.dtype)


def _transformers() -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise AcplanError("--hf-config needs transformers: pip install 'acplan[hf]'") from None
    transformers.logging.set_verbosity_error()
    return transformers


def _config(transformers: Any, name: str) -> Any:
    try:
        if name.lstrip().startswith("{"):
            return _config_of(transformers, json.loads(name), "--hf-config")
        path = pathlib.Path(name)
        if path.is_file():
            return _config_of(transformers, read_json(path), name)
        if not path.exists() and name in transformers.CONFIG_MAPPING:
            return transformers.AutoConfig.for_model(name)
        return transformers.AutoConfig.from_pretrained(name)
    except AcplanError:
        raise
    except Exception as error:  # of many kinds, depending on the mistake
        raise AcplanError(
            f"--hf-config: {name!r} is not a model type of transformers, and no "
            f"configuration was read: {reason_of(error, 'reading it')}"
        ) from None


def _config_of(transformers: Any, data: Any, name: str) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise AcplanError(f"{name}: expected a configuration with a model_type")
    if data["model_type"] not in transformers.CONFIG_MAPPING:
        raise AcplanError(
            f"{name}: model_type: {data['model_type']!r} is not a model type of transformers"
        )
    values = {key: value for key, value in data.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(data["model_type"], **values)


def _change(config: Any, change: str) -> None:
    path, separator, text = change.partition("=")
    if not separator:
        raise AcplanError(f"--set: expected key=value, found {change!r}")
    *outer, key = path.split(".")
    for part in (*outer, key):
        if not hasattr(config, part):
            near = difflib.get_close_matches(part, vars(config), 1)
            raise AcplanError(
                f"--set: the configuration has no {path!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
        if part is not key:
            config = getattr(config, part)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    try:
        setattr(config, key, value)
    except Exception as error:
        reason = reason_of(error, "setting it")
        raise AcplanError(f"--set: {change!r}: {reason}") from None


def _model_class(transformers: Any, config: Any, task: str) -> tuple[str, Any]:
    if task != "auto":
        classes = _classes(transformers, config, task)
        if not classes:
            available = [t for t in TASKS if _classes(transformers, config, t)]
            raise AcplanError(
                f"--task: {config.model_type!r} has no model for {task}; it has "
                f"{', '.join(available) or 'none of the known ones'}"
            )
        return task, classes[0]
    architectures = getattr(config, "architectures", None) or []
    for name in TASKS:
        for model_class in _classes(transformers, config, name):
            if model_class.__name__ in architectures:
                return name, model_class
    for name in TASKS:
        if name == "seq2seq-lm" and not config.is_encoder_decoder:
            continue
        classes = _classes(transformers, config, name)
        if classes:
            return name, classes[0]
    raise AcplanError(
        f"--hf-config: {config.model_type!r} has a model for none of "
        f"{', '.join(TASKS)}: use --factory"
    )


def _classes(transformers: Any, config: Any, task: str) -> Sequence[Any]:
    mapping = getattr(transformers, TASKS[task].auto_class)._model_mapping
    if type(config) not in mapping:
        return ()
    classes = mapping[type(config)]
    return classes if isinstance(classes, (list, tuple)) else (classes,)


def most_positions(config: Any) -> int | None:
    """Returns the most positions of a model's tokens, or None if its configuration does not
    say."""
    targets = getattr(config, "max_target_positions", None)
    text = config.get_text_config()
    most = targets or getattr(text, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _length(config: Any, sizes: Sizes) -> int:
    """Returns the number of tokens; the targets of a speech model have the most positions."""
    targets = getattr(config, "max_target_positions", None)
    most = most_positions(config)
    if most is None:
        return sizes.seq or 1024
    if sizes.seq is None:
        return min(most, 1024)
    if sizes.seq > most:
        key = "max_target_positions" if targets else "max_position_embeddings"
        raise AcplanError(
            f"--seq: the model takes at most {most} positions, found {sizes.seq}; --set "
            f"{key}={sizes.seq} raises that"
        )
    return sizes.seq


def _main_input(model: Any, config: Any, sizes: Sizes, dtype: torch.dtype) -> torch.Tensor:
    batch = sizes.batch
    if model.main_input_name == "input_ids":
        return torch.zeros(batch, _length(config, sizes), dtype=torch.long)
    if model.main_input_name == "pixel_values":
        channels = getattr(_vision(config), "num_channels", 3)
        return torch.zeros(batch, channels, *_image_size(config, sizes), dtype=dtype)
    if model.main_input_name == "input_features":
        length = 2 * config.max_source_positions
        return torch.zeros(batch, config.num_mel_bins, length, dtype=dtype)
    raise AcplanError(
        f"--hf-config: {type(model).__name__} takes {model.main_input_name}, whose sizes "
        "cannot be guessed: use --factory"
    )


def _vision(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def _image_size(config: Any, sizes: Sizes) -> tuple[int, int]:
    size = sizes.image or getattr(_vision(config), "image_size", None) or 224
    if isinstance(size, int):
        return size, size
    height, width = size
    return int(height), int(width)
