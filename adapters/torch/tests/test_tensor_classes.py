"""Hooks of backward, transforms of functions, and tensors of other classes than plain ones:
the step with the plan is the predicted one, and its gradients are those without."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

import acplan
from acplan._files.plan_file import Plan, PlannedModule, PlannedOperator

_ROWS, _WIDTH = 32, 16


def _loss(out: torch.Tensor) -> torch.Tensor:
    return out.abs().pow(2).mean()


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=1e-3)


def _trained(model: nn.Module, inputs: Any, optimizer_of: Any) -> list[torch.Tensor]:
    """Losses, gradients and weights of two steps."""
    values: list[torch.Tensor] = []
    optimizer = optimizer_of(model.parameters())
    for seed in range(2):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        loss = _loss(model(*inputs))
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        values += [loss.detach(), *(g.to_dense().clone() for g in gradients)]
        optimizer.step()
    return values + [p.detach() for p in model.parameters() if type(p) is nn.Parameter]


def _plans(model: nn.Module, inputs: Any, **step: Any) -> list[Plan]:
    """Returns the least plan and one between it and none, both verified."""
    step = {"loss_fn": _loss, "optimizer": _sgd, "workspaces": False} | step
    trace = acplan.trace(model, *inputs, **step)
    least = acplan.plan(trace, "min")
    between = int(least.peak_bytes + 0.6 * (trace.peak_bytes - least.peak_bytes))
    plans = [least, acplan.plan(trace, between)]
    for plan in plans:
        check = acplan.verify(model, plan, *inputs, trace=trace, **step)
        assert check.first_difference() is None, str(check)
    return plans


def _require_equal(model: nn.Module, inputs: Any, **step: Any) -> list[Plan]:
    torch.manual_seed(0)
    plans = _plans(model, inputs, **step)
    optimizer_of = step.get("optimizer", _sgd)
    expected = _trained(copy.deepcopy(model), inputs, optimizer_of)
    for plan in plans:
        planned_model = acplan.apply(copy.deepcopy(model), plan)
        actual = _trained(planned_model, inputs, optimizer_of)
        assert all(map(torch.equal, expected, actual))
    return plans


class _Block(nn.Module):
    def __init__(self, linear: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.up, self.down = linear(_WIDTH, 4 * _WIDTH), linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> Any:
        return x + self.down(F.gelu(self.up(x))) * scale


def _blocks(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), *blocks)


def _rows() -> torch.Tensor:
    return torch.randn(_ROWS, _WIDTH)


# --- Hooks


def _hooked(model: nn.Module, log: list[Any]) -> None:
    """Gives each module hooks that look and hooks that change gradients."""
    for module in model.modules():
        name = type(module).__name__
        module.register_full_backward_hook(
            lambda m, inputs, outputs, name=name: log.append(
                (name, "after", _sums(inputs), _sums(outputs))
            )
        )
        module.register_full_backward_hook(
            lambda m, inputs, outputs: tuple(None if g is None else 1.5 * g for g in inputs)
        )
        module.register_full_backward_pre_hook(
            lambda m, outputs, name=name: log.append((name, "before", _sums(outputs)))
        )
        if isinstance(module, _Block):
            module.register_forward_pre_hook(
                lambda m, args, kwargs: (args, kwargs | {"scale": 0.5}), with_kwargs=True
            )
            module.register_forward_hook(
                lambda m, args, kwargs, out: out * 1.1, with_kwargs=True
            )


def _sums(gradients: Any) -> list[float | None]:
    # In a trace they have no values.
    real = (g if type(g) is torch.Tensor else None for g in gradients)
    return [None if g is None else float(g.double().sum()) for g in real]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("is_global", [False, True])
def test_backward_hooks_of_units_are_called_as_without_a_plan(is_global: bool) -> None:
    torch.manual_seed(0)
    log: list[Any] = []
    model, x = _blocks(*(_Block() for _ in range(4))), _rows()
    handles = []
    if is_global:
        modules = nn.modules.module
        handles = [
            modules.register_module_full_backward_hook(
                lambda m, inputs, outputs: log.append((type(m), _sums(inputs), _sums(outputs)))
            ),
            modules.register_module_forward_pre_hook(
                lambda m, args: tuple(1.01 * a for a in args)
            ),
        ]
    else:
        _hooked(model, log)
    try:
        plans = _plans(model, (x,))
        assert all(plan.modules for plan in plans)
        log.clear()
        expected, expected_log = _trained(copy.deepcopy(model), (x,), _sgd), [*log]
        for plan in plans:
            log.clear()
            planned_model = acplan.apply(copy.deepcopy(model), plan, strict=True)
            assert all(map(torch.equal, expected, _trained(planned_model, (x,), _sgd)))
            assert log == expected_log
    finally:
        for handle in handles:
            handle.remove()


# --- Transforms


class _Transformed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.before, self.after = _Block(), _Block()
        self.net = nn.Sequential(_Block(), _Block())
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        if self.kind == "jvp":
            y, tangent = torch.func.jvp(self.net, (x,), (torch.ones_like(x),))
            x = y - tangent
        elif self.kind == "vjp":
            y, pulled = torch.func.vjp(self.net, x)
            x = y + pulled(torch.ones_like(y))[0]
        elif self.kind == "grad":
            x = x + torch.func.vmap(torch.func.grad(self._energy))(x)
        elif self.kind == "dual":
            forward_ad = torch.autograd.forward_ad
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(x, torch.ones_like(x))
                y, tangent = forward_ad.unpack_dual(self.net(dual))
                x = y + tangent
        return self.after(x)

    def _energy(self, row: torch.Tensor) -> torch.Tensor:
        return self.net(row).pow(2).sum()


@pytest.mark.parametrize("kind", ["jvp", "vjp", "grad", "dual"])
def test_what_a_transform_runs_is_no_unit(kind: str) -> None:
    model = nn.Sequential(_Block(), _Transformed(kind), _Block())
    for plan in _require_equal(model, (_rows(),)):
        names = {module.fqn for module in plan.modules}
        assert not any(".net" in name or name == "Sequential.1" for name in names)


def test_a_hessian_by_tangents_is_refused_in_one_line() -> None:
    class Hessian(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            plain = super().forward
            energy = torch.func.hessian(lambda row: plain(row).pow(2).sum().tanh())
            return torch.func.vmap(energy)(x)

    with pytest.raises(acplan.AcplanError, match="use torch.func.jacrev"):
        acplan.trace(Hessian(_WIDTH, 4), _rows()[:2], loss_fn=_loss)


# --- Complex numbers, and samplers


class _Complex(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH, dtype=torch.cfloat)
        self.mix = nn.Linear(_WIDTH, _WIDTH)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.view_as_complex(torch.tanh(torch.view_as_real(self.linear(x))))
        if self.kind == "conj":
            return y * y.conj() + y.conj().conj_physical()
        if self.kind == "negative":
            return torch.complex(self.mix(y.conj().imag), self.mix(y.real)).conj()
        return torch.fft.ifft(torch.fft.fft(x, dim=0) * y.mH.mT, dim=0)


@pytest.mark.parametrize("kind", ["conj", "negative", "fft"])
def test_conjugates_are_as_in_the_step(kind: str) -> None:
    model = nn.Sequential(*(_Complex(kind) for _ in range(3)))
    plans = _require_equal(model, (torch.randn(_ROWS, _WIDTH, dtype=torch.cfloat),))
    assert all(plan.modules for plan in plans)


def test_a_grid_is_sampled_as_by_cudnn() -> None:
    class Warp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow, self.out = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            grid = self.flow(x).tanh().permute(0, 2, 3, 1)
            return self.out(F.grid_sample(x, grid, align_corners=True))

    model, x = nn.Sequential(*(Warp() for _ in range(3))), torch.randn(2, 4, 8, 8)
    trace = acplan.trace(model, x, loss_fn=_loss)
    plan = acplan.plan(trace, "min")
    assert acplan.verify(model, plan, x, trace=trace, loss_fn=_loss).first_difference() is None
    names = [operator["name"] for operator in trace.data["operators"]]
    assert names.count("aten.cudnn_grid_sampler.default") == 3
    assert names.count("aten.cudnn_grid_sampler_backward.default") == 3


# --- Sparse tensors


def _ring(kind: str) -> torch.Tensor:
    at = torch.arange(_ROWS)
    places = torch.stack([at, (at + 1) % _ROWS])
    ring = torch.sparse_coo_tensor(
        places, torch.rand(_ROWS), (_ROWS, _ROWS), check_invariants=False
    ).coalesce()
    return ring if kind == "coo" else ring.to_sparse_csr()


class _Graph(_Block):
    def forward(self, x: torch.Tensor, near: Any = None) -> Any:  # type: ignore[override]
        near = self._neighbours(x) if near is None else near
        return x + torch.sparse.mm(near, self.down(F.gelu(near @ self.up(x))))

    def _neighbours(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(len(x), device=x.device)
        near = torch.sparse_coo_tensor(
            torch.stack([at, (at + 1) % len(x)]).repeat(1, 2),
            torch.ones(2 * len(x), device=x.device),
            (len(x), len(x)),
            check_invariants=False,
        )
        return torch.sparse.mm(near.coalesce(), near) * 0.5


class _Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Graph() for _ in range(3))

    def forward(self, x: torch.Tensor, *near: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, *near)
        return x


@pytest.mark.parametrize("kind", ["coo", "csr", "made"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_matrix_counts_as_its_parts(kind: str) -> None:
    near = () if kind == "made" else (_ring(kind),)
    assert _require_equal(_Graphs(), (_rows(), *near))[0].modules


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_makes_a_sparse_matrix_is_not_saved() -> None:
    model, x = _Graphs(), _rows()
    step = {"loss_fn": _loss, "workspaces": False}
    trace = acplan.trace(model, x, **step)
    calls, operators = trace.data["calls"], trace.data["operators"]
    call = next(c for c in calls if trace.data["modules"][c["module"]]["fqn"] == _LAYER)
    names = [o["name"] for o in operators[call["start"] : call["end"]]]
    planned_operators = tuple(PlannedOperator(n, "sparse_matmul" in n) for n in names)
    with pytest.raises(acplan.AcplanError, match="its result is sparse"):
        acplan.verify(
            model, Plan((PlannedModule(_LAYER, planned_operators),)), x, trace=trace, **step
        )


_LAYER = "_Graphs.layers.0"


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sparse_gradients_count_as_their_parts(accumulate: int) -> None:
    model = nn.Sequential(nn.Embedding(50, _WIDTH, sparse=True), _Block(), _Block())
    assert _require_equal(model, (torch.randint(50, (64,)),), accumulate=accumulate)


def test_a_sparse_adam_runs() -> None:
    model = nn.Sequential(nn.Embedding(50, _WIDTH, sparse=True), nn.Tanh(), nn.GELU())
    _require_equal(
        model,
        (torch.randint(50, (64,)),),
        optimizer=lambda parameters: torch.optim.SparseAdam([*parameters]),
    )


def test_elements_that_values_decide_are_refused_in_one_line() -> None:
    class Pruned(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu().to_sparse().to_dense()

    with pytest.raises(acplan.AcplanError, match="depends on values"):
        acplan.trace(Pruned(_WIDTH, 4), _rows(), loss_fn=_loss)


# --- Packed weights, and jagged tensors


def _packed(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 7
    steps = (weight / scale).round().add(8).to(torch.uint8)
    return steps[:, ::2] | (steps[:, 1::2] << 4), scale


def _unpacked(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    steps = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    return (steps.to(scale.dtype) - 8) * scale


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, packed: Any, scale: Any) -> Any:  # type: ignore[override]
        ctx.save_for_backward(packed, scale)
        return x @ _unpacked(packed, scale).t()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient @ _unpacked(*ctx.saved_tensors), None, None


class _FourBits(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        packed, scale = _packed(torch.randn(out, width))
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> Any:
        return _Product.apply(x, self.packed, self.scale) + self.bias


class _Quantized(torch.Tensor):
    """A weight that runs operators on what it holds."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, packed: Any, scale: Any, shape: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=scale.dtype, device=scale.device
        )

    def __init__(self, packed: Any, scale: Any, shape: Any) -> None:
        self.packed, self.scale = packed, scale

    def __tensor_flatten__(self) -> Any:
        return ["packed", "scale"], self.shape

    @staticmethod
    def __tensor_unflatten__(inner: Any, shape: Any, size: Any, stride: Any) -> Any:
        return _Quantized(inner["packed"], inner["scale"], shape)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, aten = kwargs or {}, torch.ops.aten
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            tensor = args[0]
            result = cls(func(tensor.packed), func(tensor.scale), tensor.shape)
            return return_and_correct_aliasing(func, args, kwargs, result)

        def plain(value: Any) -> Any:
            is_own = isinstance(value, cls)
            return _unpacked(value.packed, value.scale) if is_own else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs))


def _quantized(width: int, out: int) -> nn.Module:
    linear = nn.Linear(width, out)
    weight = _Quantized(*_packed(linear.weight.detach()), (out, width))
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


@pytest.mark.parametrize("linear", [_FourBits, _quantized])
def test_packed_weights_count_as_packed(linear: Callable[[int, int], nn.Module]) -> None:
    model = _blocks(*(_Block(linear) for _ in range(3)))
    trace = acplan.trace(model, _rows(), loss_fn=_loss, workspaces=False)
    storages = [s for s in trace.data["storages"] if s["bytes"] == _WIDTH * 4 * _WIDTH // 2]
    assert len([s for s in storages if s["category"] in ("parameter", "buffer")]) == 6
    step = {"loss_fn": _loss, "optimizer": _sgd, "workspaces": False}
    plan = acplan.plan(trace, "min")
    check = acplan.verify(model, plan, _rows(), trace=trace, loss_fn=_loss)
    assert plan.modules and check.first_difference() is None, str(check)
    torch.manual_seed(0)
    x = _rows()
    expected = _trained(copy.deepcopy(model), (x,), _sgd)
    with warnings.catch_warnings():
        warnings.simplefilter("error", acplan.PlanMismatchWarning)
        actual = _trained(acplan.apply(copy.deepcopy(model), plan), (x,), step["optimizer"])
    assert all(map(torch.equal, expected, actual))


def test_jagged_tensors_count_as_their_values() -> None:
    class Jagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(_Block() for _ in range(3))

        def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            x = torch.nested.nested_tensor_from_jagged(values, offsets)
            for layer in self.layers:
                x = layer(x)
            return x.values()

    assert _require_equal(Jagged(), (_rows(), torch.tensor([0, 5, 20, _ROWS])))[0].modules


class _Scales:
    def __init__(self, scale: torch.Tensor, zero: torch.Tensor) -> None:
        self.scale, self.more = scale, {"zero": zero}


class _Quantised(nn.Parameter):
    """A parameter that has what it was quantised by as attributes, as bitsandbytes' have."""

    codes: torch.Tensor
    state: _Scales
    owner: nn.Module


def _quantised(owner: nn.Module, weight: torch.Tensor) -> _Quantised:
    scale = weight.abs().amax(1, keepdim=True) / 127
    parameter = _Quantised((weight / scale).round().to(torch.int8), requires_grad=False)
    parameter.state = _Scales(scale, torch.zeros(1))
    parameter.codes, parameter.owner = parameter.data, owner
    return parameter


class _InHalf(torch.autograd.Function):
    """Casts a view of its input, which is a leaf there, and no weight that autocast casts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: "_OfQuantised") -> torch.Tensor:
        ctx.layer, ctx.x = layer, x
        return layer.product(x.reshape(-1, x.shape[-1]).to(torch.float16)).view_as(x).float()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (gradient.flatten(0, 1) @ ctx.layer.floats()).view_as(gradient), None


class _OfQuantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Linear(16, 16)
        self.weight = _quantised(self, torch.randn(16, 16))

    def floats(self) -> torch.Tensor:
        state = self.weight.state
        return self.weight.codes * state.scale + state.more["zero"]

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.floats().to(x.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(_InHalf.apply(x, self) + self.adapter(x))


def test_attributes_of_parameters_are_there() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(_OfQuantised(), _OfQuantised()) for _ in range(3)))
    x = torch.randn(4, 32, 16)
    before = [(p, dict(vars(p)), dict(vars(p.state))) for p in _quantised_in(model)]
    traced = acplan.trace(model, x.requires_grad_(), workspaces=False)
    assert len(before) == 6
    for parameter, attributes, state in before:
        assert vars(parameter) == attributes and vars(parameter.state) == state
        assert not isinstance(parameter.state.scale, FakeTensor)
    expected = _gradients_of(model, x)
    for share in (0.0, 0.5):
        least = acplan.plan(traced, "min")
        budget = least.peak_bytes + round(share * (traced.peak_bytes - least.peak_bytes))
        plan = acplan.plan(traced, budget)
        assert plan.modules
        verification = acplan.verify(model, plan, x, trace=traced)
        assert verification.first_difference() is None
        acplan.apply(model, plan)
        assert all(map(torch.equal, _gradients_of(model, x), expected))
        acplan.remove(model)


def _quantised_in(model: nn.Module) -> list[_Quantised]:
    return [p for p in model.parameters() if isinstance(p, _Quantised)]


def _gradients_of(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]
