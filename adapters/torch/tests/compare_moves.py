"""The copy of a block's input to the host beside the forward pass of the block, by the
width of a Llama, the length of its sequence and the GPU.

    ACPLAN=... PYTHONPATH=. python tests/compare_moves.py

writes docs/measured/moves.csv.
"""

import functools

import torch
import transformers

import acplan
from tables import Table, print_versions

_WIDTHS = {1024: 2816, 2048: 8192, 4096: 14336}
_LENGTHS = (128, 512, 2048, 8192)
_DEVICES = ("a100", "h100", "b200", "rtx4090")
_COLUMNS = (
    "width", "tokens", "device", "gbs_to_host", "gbs_to_device", "copy_ms", "forward_ms",
    "factor", "hidden_from_tokens",
)  # fmt: skip


def _model(width: int) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=_WIDTHS[width],
        num_hidden_layers=3,
        num_attention_heads=width // 128,
        num_key_value_heads=max(1, width // 512),
        vocab_size=1024,
        max_position_embeddings=max(_LENGTHS),
    )
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    print_versions("transformers")
    table = Table("moves", _COLUMNS)
    explain = functools.partial(acplan.explain, levers=False, time_limit=0.1)
    for width in _WIDTHS:
        model = _model(width)
        for tokens in _LENGTHS:
            ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
            for device in _DEVICES:
                answer = explain(model, input_ids=ids, labels=ids, device=device)
                moves = answer.data["moves"]
                to_host = moves["bytes_per_second"]
                hidden_from = moves["hidden_from"]
                table.add(
                    width,
                    tokens,
                    device,
                    f"{to_host / 1e9:g}",
                    f"{moves.get('back_bytes_per_second', to_host) / 1e9:g}",
                    f"{max(moves['send_ms'], moves['fetch_ms']) / moves['blocks']:.4f}",
                    f"{moves['forward_ms'] / moves['blocks']:.4f}",
                    f"{moves['factor']:.2f}",
                    "" if hidden_from is None else f"{hidden_from * tokens:.0f}",
                )


if __name__ == "__main__":
    main()
