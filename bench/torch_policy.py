"""PyTorch's operator policies, as torch.distributed._tools.sac_ilp finds them.

Reads a JSON list from standard input, each entry a module's statistics (names as
in a profile: memory, runtimes, view_like_ops, rand_ops, inplace_ops,
force_store_random) and memory_budget. States
get_optimal_checkpointing_policy_per_module in PuLP, solves it with the CBC that
PuLP brings and PyTorch's settings, and prints a JSON list with status, seconds
(model and solution) and recompute_ms. Exits with 3 where PuLP is missing.
"""

import json
import math
import sys
import time

try:
    import pulp
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)


def solve(sac):
    began = time.perf_counter()
    operators = range(len(sac["memory"]))
    prob = pulp.LpProblem("SAC", pulp.LpMaximize)
    x = pulp.LpVariable.matrix("x", list(operators), 0, 1, pulp.LpInteger)
    for i in sac["rand_ops"]:
        if sac["force_store_random"]:
            prob += x[i] == 1
        else:
            prob += x[i] == x[sac["rand_ops"][0]]
    for i in sac["view_like_ops"]:
        prob += x[i] == 0
    for op, parent in sac["inplace_ops"]:
        if op != parent:
            prob += x[op] == x[parent]
        else:
            prob += x[op] == 1
    max_memory = math.ceil(sac["memory_budget"] * sum(sac["memory"]))
    prob += pulp.lpDot(x, sac["memory"]) <= max_memory
    prob += pulp.lpDot(x, sac["runtimes"])
    status = prob.solve(pulp.PULP_CBC_CMD(gapRel=0.05, timeLimit=10, msg=0))
    seconds = time.perf_counter() - began
    saved = [(v.varValue or 0) > 0.5 for v in x]
    return {
        "status": pulp.LpStatus[status],
        "seconds": seconds,
        "recompute_ms": sum(t for t, s in zip(sac["runtimes"], saved) if not s),
        "fits": sum(m for m, s in zip(sac["memory"], saved) if s) <= max_memory,
    }


json.dump([solve(sac) for sac in json.load(sys.stdin)], sys.stdout)
