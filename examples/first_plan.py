"""GPT-2 within 10 GiB: from the model to a plan whose step is traced again. Needs no GPU."""

import torch
import transformers

import acplan

with torch.device("meta"):  # no weights
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    tokens = torch.zeros(8, 1024, dtype=torch.long)

trace = acplan.trace(model, input_ids=tokens, labels=tokens)
plan = acplan.plan(trace, budget="10GiB")
check = acplan.verify(model, plan, trace=trace, input_ids=tokens, labels=tokens)

print(plan)
print(check)
