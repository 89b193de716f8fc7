"""Computes on the CPU the operators that only a device has.

The values that a traced step computes beside its fake tensors decide which operators run, so
they need to be right up to rounding. Results that only the backward of the same operator reads
(reserves, random states) have no values, and none of these operators drops anything out: random
numbers differ from the device's anyway.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_aten = torch.ops.aten
Compute = Callable[[Mapping[str, Any]], Any]

# The names of arguments that these computations do not read.
_UNREAD = frozenset(
    ["logsumexp", "cum_seq_q", "cum_seq_k", "philox_seed", "philox_offset", "out"]
    + ["reserve", "reserveSpace", "weight_buf", "dropout_state"]
)


@functools.cache
def on_the_cpu(func: Any) -> Callable[..., Any] | None:
    """Returns a function that computes an operator on CPU tensors, if the CPU has no kernel for
    it or not the one that is needed, else None."""
    name = func.name().removeprefix("aten::")
    compute = _COMPUTED.get(name.removesuffix(".default"))
    if compute is None:
        return None
    parameters = func._schema.arguments

    def compute_on_the_cpu(*args: Any, **kwargs: Any) -> Any:
        arguments = {p.name: p.default_value for p in parameters if p.has_default_value()}
        arguments |= {p.name: value for p, value in zip(parameters, args)} | kwargs
        return compute(arguments)

    return compute_on_the_cpu


def read_on_the_cpu(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments whose values need to be known."""
    if on_the_cpu(func) is None:
        return [*args, *kwargs.values()]
    names = (parameter.name for parameter in func._schema.arguments)
    arguments = [*zip(names, args), *kwargs.items()]
    return [value for name, value in arguments if name not in _UNREAD]


def _scores(a: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Returns the query, key and value in float32, with a key and a value for each head, the
    scale, and the scores that softmax takes."""
    query, key, value = (a[name].float() for name in ("query", "key", "value"))
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    scale = query.shape[-1] ** -0.5 if a.get("scale") is None else a["scale"]
    scores = query @ key.transpose(-2, -1) * scale
    if a.get("attn_bias") is not None:
        scores = scores + a["attn_bias"]
    if a["is_causal"]:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return query, key, value, torch.tensor(scale), scores


def _attention(a: Mapping[str, Any]) -> Any:
    _, _, value, _, scores = _scores(a)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return ((weights @ value).to(a["query"].dtype),)


def _attention_backward(a: Mapping[str, Any]) -> Any:
    """Returns the gradients of query, key, value and bias."""
    query, key, value, scale, scores = _scores(a)
    grad = a.get("grad_out", a.get("grad_out_")).float()
    weights = scores.softmax(-1).nan_to_num(0.0)
    of_weights = grad @ value.transpose(-2, -1)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    gradients = [
        of_scores @ key * scale,
        of_scores.transpose(-2, -1) @ query * scale,
        weights.transpose(-2, -1) @ grad,
    ]
    like = [a[name] for name in ("query", "key", "value")]
    bias = a.get("attn_bias")
    if bias is not None:
        return (*map(_summed_to, gradients, like), _summed_to(of_scores, bias))
    return tuple(map(_summed_to, gradients, like))


def _summed_to(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of a tensor that was expanded, or repeated for a group of heads."""
    if gradient.dim() == 4 and like.shape[1] not in (1, gradient.shape[1]):
        groups = gradient.shape[1] // like.shape[1]
        gradient = gradient.unflatten(1, (like.shape[1], groups)).sum(2)
    return gradient.sum_to_size(like.shape).to(like.dtype)


def _batch_norm(a: Mapping[str, Any]) -> Any:
    return _aten.native_batch_norm(
        a["input"], a["weight"], a["bias"], a["running_mean"], a["running_var"],
        a["training"], a["exponential_average_factor"], a["epsilon"],
    )  # fmt: skip


def _batch_norm_backward(a: Mapping[str, Any]) -> Any:
    return _aten.native_batch_norm_backward(
        a["grad_output"], a["input"], a["weight"], a["running_mean"], a["running_var"],
        a["save_mean"], a["save_var"], True, a["epsilon"], [True, True, True],
    )  # fmt: skip


def _softmax(of_floats: Any) -> Compute:
    """Returns a softmax that turns half precision into float32 first; the CPU has no kernel
    that does both."""

    def compute(a: Mapping[str, Any]) -> Any:
        data = a["self"].float() if a["half_to_float"] else a["self"]
        return of_floats(data, a["dim"], False)

    return compute


def _softmax_backward(of_floats: Any) -> Compute:
    def compute(a: Mapping[str, Any]) -> Any:
        grad = a["grad_output"]
        return of_floats(grad, a["output"], a["dim"], grad.dtype).to(a["input_dtype"])

    return compute


def _rms_norm_backward(a: Mapping[str, Any]) -> Any:
    data, grad = a["input"].float(), a["grad_out"].float()
    weight = a["weight"]
    own = tuple(range(data.dim() - len(a["normalized_shape"]), data.dim()))
    others = tuple(range(own[0]))
    unit = data * a["rstd"].float()
    of_unit = grad if weight is None else grad * weight.float()
    mean = (of_unit * unit).mean(own, keepdim=True)
    of_input = (of_unit - unit * mean) * a["rstd"].float()
    of_weight = (grad * unit).sum(others) if others else grad * unit
    return (
        of_input.to(a["input"].dtype),
        None if weight is None else of_weight.to(weight.dtype),
    )


def _gates(a: Mapping[str, Any], count: int) -> tuple[list[torch.Tensor], ...]:
    """Returns the gates of the input and of the hidden state, with their biases."""
    pairs = (("input_gates", "input_bias"), ("hidden_gates", "hidden_bias"))
    sums = []
    for gates, bias in pairs:
        total = a[gates] if a.get(bias) is None else a[gates] + a[bias]
        sums.append([*total.chunk(count, 1)])
    return tuple(sums)


def _lstm_cell(a: Mapping[str, Any]) -> Any:
    of_input, of_hidden = _gates(a, 4)
    i, f, g, o = (x + h for x, h in zip(of_input, of_hidden))
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * a["cx"] + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(a: Mapping[str, Any]) -> Any:
    i, f, g, o = a["workspace"].chunk(4, 1)
    cell = a["cy"].tanh()
    zero = torch.zeros_like(cell)
    grad_hy = zero if a["grad_hy"] is None else a["grad_hy"]
    grad_cy = zero if a["grad_cy"] is None else a["grad_cy"]
    of_cell = grad_hy * o * (1 - cell * cell) + grad_cy
    gates = [
        of_cell * g * i * (1 - i),
        of_cell * a["cx"] * f * (1 - f),
        of_cell * i * (1 - g * g),
        grad_hy * cell * o * (1 - o),
    ]
    of_gates = torch.cat(gates, 1)
    return of_gates, of_cell * f, of_gates.sum(0) if a["has_bias"] else None


def _gru_cell(a: Mapping[str, Any]) -> Any:
    of_input, of_hidden = _gates(a, 3)
    r = (of_input[0] + of_hidden[0]).sigmoid()
    z = (of_input[1] + of_hidden[1]).sigmoid()
    n = (of_input[2] + r * of_hidden[2]).tanh()
    return n + z * (a["hx"] - n), torch.cat([r, z, n, a["hx"], of_hidden[2]], 1)


def _gru_cell_backward(a: Mapping[str, Any]) -> Any:
    r, z, n, hx, hidden = a["workspace"].chunk(5, 1)
    grad = a["grad_hy"]
    of_n = grad * (1 - z) * (1 - n * n)
    of_z = grad * (hx - n) * z * (1 - z)
    of_r = of_n * hidden * r * (1 - r)
    of_input = torch.cat([of_r, of_z, of_n], 1)
    of_hidden = torch.cat([of_r, of_z, of_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if a["has_bias"] else (None, None)
    return (of_input, of_hidden, grad * z, *biases)


def _rnn(a: Mapping[str, Any]) -> Any:
    kinds = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
    run: Any = kinds[a["mode"]]
    hidden = a["hx"] if a["cx"] is None else (a["hx"], a["cx"])
    weights = a["weight"]
    has_bias = a["weight_stride0"] > 3
    shape = (has_bias, a["num_layers"], 0.0, False, a["bidirectional"])
    if a["batch_sizes"]:
        sizes = torch.tensor(a["batch_sizes"])
        out = run(a["input"], sizes, hidden, weights, *shape)
    else:
        data = a["input"].transpose(0, 1) if a["batch_first"] else a["input"]
        with warnings.catch_warnings():  # about how long some kinds take
            warnings.simplefilter("ignore")
            out = run(data, hidden, weights, *shape, False)
    first = out[0].transpose(0, 1) if a["batch_first"] else out[0]
    return (first, *out[1:])


def _rnn_backward(a: Mapping[str, Any]) -> Any:
    """Computes the gradients by autograd, which is switched off below the operators and is
    switched on again here."""
    with torch.enable_grad(), _with_autograd():
        names = ("input", "hx", "cx")
        data, hx, cx = (_leaf(a[name]) for name in names)
        weights = [_leaf(weight) for weight in a["weight"]]
        arguments = {**a, "input": data, "hx": hx, "cx": cx, "weight": weights}
        out = _rnn(arguments)
        output_grads = (a["grad_output"], a["grad_hy"], a["grad_cy"])
        pairs = [(o, g) for o, g in zip(out, output_grads) if g is not None]
        inputs = [t for t in (data, hx, cx, *weights) if t is not None]
        gradients = torch.autograd.grad(
            [o for o, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True
        )
    grads = [*gradients]
    grad_cx = grads.pop(2) if cx is not None else None
    return grads[0], grads[1], grad_cx, grads[2:] if a["output_mask"][3] else []


def _leaf(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().requires_grad_()


def _with_autograd() -> Any:
    keys = ("AutogradCPU", "AutogradOther", "AutogradFunctionality", "ADInplaceOrView")
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in keys:
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:
            excluded = excluded.remove(key)
    included = torch._C._dispatch_tls_local_include_set()
    return torch._C._ForceDispatchKeyGuard(included, excluded)


def _grouped_mm(a: Mapping[str, Any]) -> Any:
    """Returns a product for each group of rows, or of columns, that ends at the places in
    `offs`."""
    mat_a, mat_b, ends = a.get("self", a.get("mat_a")), a.get("mat2", a.get("mat_b")), a["offs"]
    dtype = a["out_dtype"] or mat_a.dtype
    if ends is None:
        return (mat_a @ mat_b).to(dtype)
    spans = [slice(s, e) for s, e in zip([0, *ends.tolist()[:-1]], ends.tolist())]
    if mat_a.dim() == 2 and mat_b.dim() == 2:
        return torch.stack([mat_a[:, s] @ mat_b[s] for s in spans]).to(dtype)
    if mat_a.dim() == 2:
        product = mat_a.new_zeros(mat_a.shape[0], mat_b.shape[-1])
        for k, s in enumerate(spans):
            product[s] = mat_a[s] @ mat_b[k]
    else:
        product = mat_a.new_zeros(mat_a.shape[1], mat_b.shape[-1])
        for k, s in enumerate(spans):
            product[:, s] = mat_a[k] @ mat_b[:, s]
    return product.to(dtype)


_ATTENTIONS = ("flash", "efficient", "cudnn")
_COMPUTED: Mapping[str, Compute] = {
    **{f"_scaled_dot_product_{kind}_attention": _attention for kind in _ATTENTIONS},
    **{
        f"_scaled_dot_product_{kind}_attention_backward": _attention_backward
        for kind in _ATTENTIONS
    },
    "cudnn_batch_norm": _batch_norm,
    "miopen_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "miopen_batch_norm_backward": _batch_norm_backward,
    "_softmax": _softmax(_aten._softmax.default),
    "_log_softmax": _softmax(_aten._log_softmax.default),
    "_softmax_backward_data": _softmax_backward(_aten._softmax_backward_data.default),
    "_log_softmax_backward_data": _softmax_backward(_aten._log_softmax_backward_data.default),
    "_fused_rms_norm_backward": _rms_norm_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_cudnn_rnn": _rnn,
    "_cudnn_rnn_backward": _rnn_backward,
    "miopen_rnn": _rnn,
    "miopen_rnn_backward": _rnn_backward,
    "_grouped_mm": _grouped_mm,
}


def in_float32(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs in float32 an operator in half precision for which the CPU has only a float32
    kernel. Raises NotImplementedError for an operator that writes to its arguments."""
    if func._schema.is_mutable:
        raise NotImplementedError(str(func))
    halves = (torch.float16, torch.bfloat16)
    dtypes: list[torch.dtype] = []

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in halves:
            dtypes.append(value.dtype)
            return value.float()
        return value

    out = func(
        *torch.utils._pytree.tree_map(widen, [*args]),
        **torch.utils._pytree.tree_map(widen, dict(kwargs)),
    )
    if not dtypes:
        raise NotImplementedError(str(func))

    def narrow(value: Any) -> Any:
        is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.to(dtypes[0]) if is_wide else value

    return torch.utils._pytree.tree_map(narrow, out)
