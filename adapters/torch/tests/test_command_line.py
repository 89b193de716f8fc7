import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers

from acplan import Trace, trace
from acplan.__main__ import main

_DATA = pathlib.Path(__file__).parents[3] / "data" / "profiles"
_PACKAGE = str(pathlib.Path(__file__).parents[1])
_SMALL = {
    "gpt2": ["n_layer=2", "n_embd=48", "n_head=4", "vocab_size=99"],
    "llama": [
        "num_hidden_layers=2",
        "hidden_size=48",
        "intermediate_size=64",
        "num_attention_heads=4",
        "num_key_value_heads=2",
        "vocab_size=99",
    ],
    "mixtral": ["num_hidden_layers=1", "hidden_size=64", "intermediate_size=64"],
    "bert": ["num_hidden_layers=1", "vocab_size=99"],
    "t5": ["num_layers=1", "num_decoder_layers=1", "vocab_size=99"],
    "vit": ["num_hidden_layers=1"],
    "clip": ["vision_config.num_hidden_layers=1"],
    "resnet": ["depths=[1,1,1,1]"],
    "segformer": ["depths=[1,1,1,1]"],
    "whisper": ["encoder_layers=1", "decoder_layers=1", "max_source_positions=50"],
}


def _changes(name: str) -> list[str]:
    return [word for change in _SMALL[name] for word in ("--set", change)]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def _trace_of(arguments: Sequence[str]) -> dict[str, Any]:
    assert main(["trace", *arguments, "-o", "t.json.gz"]) == 0
    return Trace.load("t.json.gz").data


@pytest.mark.parametrize(
    ("name", "flags", "root"),
    [
        ("gpt2", ["--seq", "16"], "GPT2LMHeadModel"),
        ("llama", ["--seq", "16"], "LlamaForCausalLM"),
        ("mixtral", ["--seq", "16", "--dtype", "bfloat16"], "MixtralForCausalLM"),
        ("bert", ["--seq", "16"], "BertForMaskedLM"),
        ("t5", ["--seq", "16"], "T5ForConditionalGeneration"),
        ("whisper", ["--seq", "16"], "WhisperForConditionalGeneration"),
        ("vit", [], "ViTForImageClassification"),
        ("clip", ["--image-size", "64"], "CLIPForImageClassification"),
        ("resnet", ["--image-size", "64"], "ResNetForImageClassification"),
        (
            "segformer",
            ["--task", "semantic-segmentation", "--image-size", "64"],
            "SegformerForSemanticSegmentation",
        ),
        ("gpt2", ["--seq", "9", "--task", "sequence-classification"], None),
        ("bert", ["--seq", "9", "--task", "question-answering"], None),
        ("bert", ["--seq", "9", "--task", "token-classification"], None),
        ("vit", ["--image-size", "64", "--batch", "3"], None),
    ],
)
def test_models_of_many_kinds_are_traced(name: str, flags: list[str], root: str | None) -> None:
    data = _trace_of(["--hf-config", name, "--batch", "2", *_changes(name), *flags])
    assert root is None or data["model"]["root_class"] == root
    assert data["model"]["batch"] == (3 if "3" in flags else 2)
    assert data["backward_end"] > data["forward_end"] > 0
    categories = {storage["category"] for storage in data["storages"]}
    assert {"parameter", "gradient", "optimizer", "activation", "input"} <= categories


def test_the_trace_is_that_of_the_model(capsys: Any) -> None:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=48, n_head=4, vocab_size=99, use_cache=False,
        pad_token_id=0,  # as the command sets it where there is none
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
        tokens = torch.zeros(3, 16, dtype=torch.long)
        labels = torch.zeros(3, 16, dtype=torch.long)
    expected = trace(model, input_ids=tokens, labels=labels).data
    sizes = ["--batch", "3", "--seq", "16"]
    data = _trace_of(["--hf-config", "gpt2", *_changes("gpt2"), *sizes])
    facts = {"batch": 3, "seq": 16, "dtype": "float32", "optimizer": "adamw"}
    assert data.pop("model") == {**expected.pop("model"), **facts}
    assert data == expected
    said = capsys.readouterr()
    assert said.out == (
        f"t.json.gz: {len(expected['operators']):,} operators, peak "
        f"{expected['measured']['peak_bytes']:,} bytes\n"
        f"note: {expected['notes'][0]}\n"
    )
    assert said.err == ""


def test_configurations_come_from_files_folders_and_text(
    tmp_path: pathlib.Path,
) -> None:
    config = transformers.BertConfig(
        num_hidden_layers=1,
        vocab_size=99,
        architectures=["BertForTokenClassification"],
    )
    config.save_pretrained("folder")
    sizes = ["--batch", "2", "--seq", "16"]
    sources = ["folder", "folder/config.json", config.to_json_string()]
    traces = [_trace_of(["--hf-config", source, *sizes]) for source in sources]
    assert traces[0] == traces[1] == traces[2]
    assert traces[0]["model"]["root_class"] == "BertForTokenClassification"


def test_flags_of_the_step(tmp_path: pathlib.Path) -> None:
    sizes = ["--hf-config", "gpt2", *_changes("gpt2"), "--batch", "2", "--seq", "16"]

    def bytes_of(category: str, *flags: str) -> int:
        storages = _trace_of([*sizes, *flags])["storages"]
        return sum(s["bytes"] for s in storages if s["category"] == category)

    plain = _trace_of(sizes)
    weights = sum(s["bytes"] for s in plain["storages"] if s["category"] == "parameter")
    assert bytes_of("parameter", "--dtype", "bfloat16") * 2 == weights
    assert bytes_of("optimizer", "--optimizer", "sgd") == 0
    assert weights <= bytes_of("optimizer", "--optimizer", "momentum") < 1.1 * weights
    assert bytes_of("optimizer", "--optimizer", "adam") >= 2 * weights
    cast = _trace_of([*sizes, "--autocast", "bfloat16"])
    h100 = _trace_of([*sizes, "--device", "h100"])
    assert len(cast["operators"]) > len(plain["operators"])
    assert h100["device"]["name"] == "h100"
    assert _trace_of(["--hf-config", "bert", *_changes("bert")])["model"]["seq"] == 512


_FACTORY = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())

def pair():
    return net(), (torch.zeros(4, 8),)

def whole():
    with torch.device("meta"):
        return {"model": net(), "args": [torch.zeros(4, 8)],
                "loss_fn": lambda out: out.square().sum(),
                "optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}

def blocks():
    with torch.device("meta"):
        parts = (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
                 for _ in range(3))
        return nn.Sequential(*parts), (torch.zeros(4096, 64),)

def bare():
    return net()

def number():
    return 3

def odd():
    return {"model": net(), "arg": ()}

def no_model():
    return {"model": 3}

def text():
    return net(), "x", {}

def fails():
    raise ValueError("of the user\\nin two lines")
"""


@pytest.fixture
def factory(tmp_path: pathlib.Path) -> None:
    (tmp_path / "models_of_mine.py").write_text(_FACTORY)
    sys.modules.pop("models_of_mine", None)


def test_factories(factory: None) -> None:
    whole = _trace_of(["--factory", "models_of_mine:whole"])
    names = [operator["name"] for operator in whole["operators"]]
    assert any("pow" in name for name in names)
    pair = _trace_of(["--factory", "models_of_mine:pair", "--optimizer", "sgd"])
    for data in (whole, pair):
        assert not any(s["category"] == "optimizer" for s in data["storages"])
    mean = _trace_of(["--factory", "models_of_mine:pair"])
    assert any(s["category"] == "optimizer" for s in mean["storages"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["paint"], "invalid choice: 'paint'"),
        (["trace"], "required: -o/--output"),
        (["trace", "-o", "t.json"], "one of the arguments --hf-config --factory is"),
        (["trace", "--hf-config", "gpt2", "-o", "no/t.json"], "no folder 'no'"),
        (["trace", "--hf-config", "gpt2", "-o", "."], "found a folder"),
        (["trace", "--hf-config", "gpt22", "-o", "t.json"], "'gpt22' is not a model type"),
        (["trace", "--hf-config", "{", "-o", "t.json"], "no configuration was read"),
        (["trace", "--hf-config", "{}", "-o", "t.json"], "with a model_type"),
        (
            ["trace", "--hf-config", '{"model_type": "x"}', "-o", "t.json"],
            "model_type: 'x' is not a model type of transformers",
        ),
        (
            ["trace", "--hf-config", "gpt2", "--set", "n_layers=2", "-o", "t.json"],
            "has no 'n_layers'; did you mean 'n_layer'?",
        ),
        (
            ["trace", "--hf-config", "gpt2", "--set", "n_layer", "-o", "t.json"],
            "--set: expected key=value, found 'n_layer'",
        ),
        (
            ["trace", "--hf-config", "gpt2", "--set", "n_layer=two", "-o", "t.json"],
            "n_layer",
        ),
        (
            ["trace", "--hf-config", "gpt2", "--seq", "2000", "-o", "t.json"],
            "--seq: the model takes at most 1024 positions, found 2000",
        ),
        (["trace", "--hf-config", "gpt2", "--batch", "0", "-o", "t"], "above 0, found"),
        (
            ["trace", "--hf-config", "resnet", "--task", "causal-lm", "-o", "t.json"],
            "'resnet' has no model for causal-lm; it has image-classification",
        ),
        (["trace", "--hf-config", "sam", "-o", "t.json"], "use --factory"),
        (["trace", "--hf-config", "wav2vec2", "-o", "t.json"], "takes input_values"),
        (
            ["trace", "--factory", "models_of_mine", "-o", "t"],
            "package.module:function",
        ),
        (["trace", "--factory", "nothing_here:f", "-o", "t"], "No module named"),
        (["trace", "--factory", "models_of_mine:f", "-o", "t"], "has no 'f'"),
        (["trace", "--factory", "models_of_mine:nn", "-o", "t"], "is not a function"),
        (["trace", "--factory", "models_of_mine:number", "-o", "t"], "found int"),
        (["trace", "--factory", "models_of_mine:odd", "-o", "t"], "found 'arg'"),
        (["trace", "--factory", "models_of_mine:no_model", "-o", "t"], "found int"),
        (
            ["trace", "--factory", "models_of_mine:text", "-o", "t"],
            "found str and dict",
        ),
        (["trace", "--factory", "models_of_mine:bare", "-o", "t"], "TypeError: "),
        (
            ["trace", "--factory", "models_of_mine:fails", "-o", "t"],
            "ValueError: of the user",
        ),
        (
            ["trace", "--factory", "models_of_mine:pair", "--seq", "5", "-o", "t"],
            "--seq: needs --hf-config",
        ),
        (["plan", "--budget", "1GiB"], "expected one of FILE, --hf-config and --fact"),
        (["plan", "p.json", "--factory", "a:b", "--budget", "1"], "expected one of"),
        (["plan", "gone.json", "--budget", "1GiB", "-o", "o.json"], "No such file"),
        (
            ["plan", "gone.json", "--seq", "3", "--budget", "1GiB"],
            "--seq: needs --hf-config or --factory",
        ),
        (["verify", "--factory", "models_of_mine:pair", "gone.json"], "No such file"),
    ],
)
def test_one_line_says_what_is_wrong(
    factory: None,
    tmp_path: pathlib.Path,
    capsys: Any,
    arguments: list[str],
    message: str,
) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("acplan: ") and said.err.count("\n") == 1, said.err
    assert message in said.err
    after = sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__")
    assert after == before


@pytest.mark.parametrize("command", [[], ["trace"], ["verify"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main([*command, "--help"])
    assert exit_info.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(" ".join(["usage: python -m acplan", *command]))


def test_the_package_is_a_program() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "acplan", "plan", "--help"],
        env={**os.environ, "PYTHONPATH": _PACKAGE},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and run.stderr == ""
    assert run.stdout.startswith("usage: python -m acplan plan")


def test_debug_shows_the_traceback(factory: None) -> None:
    with pytest.raises(ValueError, match="of the user"):
        main(["trace", "--factory", "models_of_mine:fails", "-o", "t", "--debug"])


def test_plans_of_profiles(capsys: Any) -> None:
    profile = str(_DATA / "transformer4.json.gz")
    flags = ["--max-units", "4", "--without-states", "--ac-units", "@units.txt"]
    pathlib.Path("units.txt").write_text("\n".join(f"Transformer.layers.{k}" for k in range(4)))
    code = main(["plan", profile, "--budget", "1.6GiB", *flags, "-o", "plan.json"])
    assert code == 0
    assert "optimal: no plan within the budget" in capsys.readouterr().out
    plan = json.loads(pathlib.Path("plan.json").read_text())
    assert plan["without_states"] and 0 < len(plan["modules"]) <= 4
    assert main(["plan", profile, "--budget", "1MiB", "-o", "none.json"]) == 3
    assert "the smallest feasible budget" in capsys.readouterr().err
    assert not pathlib.Path("none.json").exists()


def test_plans_and_verifies_models(factory: None, capsys: Any) -> None:
    model = ["--factory", "models_of_mine:blocks"]
    assert main(["plan", *model, "--budget", "85%", "-o", "a.json"]) == 0
    assert main(["trace", *model, "-o", "t.json"]) == 0
    assert main(["plan", "t.json", "--budget", "85%", "-o", "b.json"]) == 0
    plans = [json.loads(pathlib.Path(name).read_text()) for name in ("a.json", "b.json")]
    assert plans[0]["modules"] == plans[1]["modules"] != []
    capsys.readouterr()
    for name, bytes_, code in [("over.json", 1000, 1), ("within.json", 1 << 40, 0)]:
        pathlib.Path(name).write_text(json.dumps({**plans[0], "budget_bytes": bytes_}))
        for more in ([], ["--trace", "t.json"]):
            assert main(["verify", *model, name, *more]) == code
            said = capsys.readouterr()
            assert said.out.startswith("predicted peak ")
            assert ("verify: the plan peaks at" in said.err) == (code == 1)


def _help_of(
    command: Sequence[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_every_help_is_within_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_all = _help_of([], capsys, monkeypatch)
    commands = re.findall(r"^    ([a-z][a-z-]+) ", of_all, re.MULTILINE)
    assert {"trace", "explain", "batch", "gpu-check"} <= set(commands)
    for command in commands:
        lines = _help_of([command], capsys, monkeypatch).splitlines()
        assert f"usage: python -m acplan {command}" in lines[0]
        assert max(map(len, lines)) <= 80, command
    assert max(map(len, of_all.splitlines())) <= 80
