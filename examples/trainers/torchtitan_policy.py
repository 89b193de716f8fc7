"""A plan in place of torchtitan's activation checkpointing. (Its own model stood in for.)

torchrun --nproc-per-node 2 torchtitan_policy.py [--without]
"""

import pathlib
import sys
from types import SimpleNamespace as Part

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import acplan.torchtitan

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from torchtitan_style import Transformer, next_token_loss  # noqa: E402

if __name__ == "__main__":
    dist.init_process_group("gloo")
    config = Part(
        training=Part(local_batch_size=4, global_batch_size=-1, seq_len=128,
                      mixed_precision_param="bfloat16", max_norm=1.0),
        parallelism=Part(data_parallel_shard_degree=-1, data_parallel_replicate_degree=1),
    )  # fmt: skip
    with torch.device("meta"):
        model = Transformer(vocabulary=256, width=128, depth=4)
    if "--without" not in sys.argv:
        acplan.torchtitan.Policy.from_config(config, "90%").build().apply(model)
    for module in (*model.layers, model):
        fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    torch.manual_seed(0)
    model.to_empty(device="cpu")
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for tokens in torch.randint(256, (2, 4, 128)):
        loss = next_token_loss(model(tokens).float(), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"losses {loss.item()}\n" * (dist.get_rank() == 0), end="")
    dist.destroy_process_group()
