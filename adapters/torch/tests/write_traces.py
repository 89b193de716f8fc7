"""Writes data/traces: the traces of real models that are bundled.

    PYTHONPATH=. python tests/write_traces.py ../../data/traces

in adapters/torch; names of files after it, without .json.gz, write only those.
"""

import pathlib
import sys

from acplan import trace
from models import MODELS
from zoo import EXAMPLES

BUNDLED = {
    "bert_base": "BERT base, 16 x 512",
    "gpt2_small": "GPT-2 small, 8 x 1024 (tied weights)",
    "gpt2_small_autocast": "GPT-2 small, autocast",
    "llama3_8b": "Llama-3-8B, bf16, 1 x 4096",
    "mixtral_4_layers": "Mixtral, 4 layers, 1 x 512",
    "resnet50": "ResNet-50, 16 x 224",
    "resnet50_autocast": "ResNet-50, autocast",
    "swin_tiny": "Swin tiny, 16 x 224",
    "t5_small": "T5 small, 8 x 512",
    "vit_base": "ViT base, 32 x 224",
}


def main(folder: pathlib.Path, names: list[str]) -> None:
    for file in names or ["gpt2_tiny", *BUNDLED]:
        make, autocast = EXAMPLES["gpt2"], None
        if file in BUNDLED:
            make, autocast = MODELS[BUNDLED[file]]
        model, inputs = make().on_meta()
        trace(model, autocast=autocast, source=False, **inputs).save(folder / f"{file}.json.gz")
        print(file, flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
