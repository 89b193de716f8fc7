"""Optimizers whose states wait on the host: results to the bit, and bytes as traced."""

import copy
import dataclasses
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import acplan
from acplan import AcplanError, offload_states
from acplan._advise.host_states import LEVER, HostStates, Side
from acplan._base import host_copies
from acplan._base.host_copies import RELOAD
from offloading import Device, LateQueues, Streams

OPTIMIZERS = {
    "ASGD": {}, "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {"amsgrad": True},
    "AdamW": {}, "Adamax": {}, "NAdam": {}, "RAdam": {}, "RMSprop": {"centered": True},
    "Rprop": {}, "SGD": {"lr": 0.1, "momentum": 0.9},
}  # fmt: skip
WAYS: tuple[dict[str, bool], ...] = ({"foreach": False}, {"foreach": True}, {"fused": True})
PART = 10_000  # the second layer is larger


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(32, 64)]
    for _ in range(6):
        layers += [nn.Sequential(nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 8))


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3
) -> list[torch.Tensor]:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    torch.manual_seed(1)
    losses = []
    for step in range(steps):
        # In one step a parameter is not trained.
        next(model.parameters()).requires_grad_(step != 1)
        losses.append(_loss(model(torch.randn(4, 32))))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return [*(loss.detach() for loss in losses), *(p.detach() for p in model.parameters())]


def _require_equal(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> None:
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("in_backward", [False, True], ids=["update", "backward"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_and_weights_are_the_same_to_the_bit(name: str, in_backward: bool) -> None:
    ran = 0
    for way in WAYS:
        options: Any = {**OPTIMIZERS[name], **way}
        model, same = _net(), _net()
        try:
            plain = getattr(torch.optim, name)(_groups(model), **options)
        except TypeError:  # it has no such implementation
            continue
        ran += 1
        wrapped = offload_states(
            getattr(torch.optim, name)(_groups(same), **options),
            part_bytes=PART,
            in_backward=in_backward,
        )
        _require_equal(_train(model, plain), _train(same, wrapped))
    assert ran


def _groups(model: nn.Sequential) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[:3]}, {"params": parameters[3:], "weight_decay": 0.1}]


@pytest.mark.parametrize("in_backward", [False, True], ids=["update", "backward"])
@pytest.mark.parametrize("share", [0, 0.3, 0.5, 0.9])
def test_a_share_moves(share: float, in_backward: bool) -> None:
    model, same = _net(), _net()
    values: list[torch.Tensor] = []

    def reload(value: torch.Tensor, device: torch.device) -> Any:
        values.append(value)
        return RELOAD(value, device)

    own = torch.optim.AdamW(same.parameters())
    wrapped = offload_states(own, part_bytes=PART, in_backward=in_backward, share=share)
    expected = _train(model, torch.optim.AdamW(model.parameters()), 1)
    _require_equal(expected, _train(same, wrapped, 1))
    with mock.patch("acplan._base.offloaded_states.RELOAD", reload):
        _loss(same(torch.randn(4, 32))).backward()
        wrapped.step()
    total = sum(p.nbytes for p in same.parameters())
    largest = max(p.nbytes for p in same.parameters())
    moved_bytes = sum(value.nbytes for value in values) / 2  # two states
    assert share * total - largest < moved_bytes <= share * total
    # A trace and its step agree at each share.
    options: Any = {"loss_fn": _loss, "workspaces": False}
    name = f"adamw-{round(100 * share)}%-on-host" + "-in-backward" * in_backward
    trace = acplan.trace(_net(), torch.randn(4, 32), optimizer=name, **options)
    own_trace = acplan.trace(
        _net(),
        torch.randn(4, 32),
        optimizer=lambda p: offload_states(
            torch.optim.AdamW(p), in_backward=in_backward, share=share
        ),
        **options,
    )
    assert trace.live_bytes == own_trace.live_bytes


@pytest.mark.parametrize("in_backward", [False, True], ids=["update", "backward"])
@pytest.mark.parametrize("kind", ["late", "streams"])
def test_copies_may_be_made_at_any_time_until_they_are_waited_for(
    kind: str, in_backward: bool
) -> None:
    log: list[str] = []
    queues: Any = LateQueues(log, is_late=True)
    if kind == "streams":
        queues = Streams(torch.device("cpu"), Device(3))
    model, same = _net(), _net()
    expected = _train(model, torch.optim.AdamW(model.parameters()))
    with mock.patch.object(host_copies, "_queues_on", lambda device: queues):
        own = torch.optim.AdamW(same.parameters())
        wrapped = offload_states(own, part_bytes=PART, in_backward=in_backward)
        actual = _train(same, wrapped)
    _require_equal(expected, actual)
    assert not host_copies._pending
    if kind == "late":
        # A copy is under way while the states of another part are updated.
        assert sum(entry.endswith("ends") for entry in log) == len(log) // 2 > 0


def test_states_are_saved_and_loaded() -> None:
    model, same = _net(), _net()
    plain = torch.optim.AdamW(model.parameters())
    wrapped = offload_states(torch.optim.AdamW(same.parameters()), part_bytes=PART)
    _require_equal(_train(model, plain), _train(same, wrapped))
    saved = copy.deepcopy(wrapped.state_dict())
    for key, state in plain.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(saved["state"][key][name], value)
    second = offload_states(torch.optim.AdamW(same.parameters()), part_bytes=PART)
    second.load_state_dict(saved)
    _require_equal(_train(model, plain), _train(same, second))


class _Fetched(TorchDispatchMode):
    """Lists the bytes of fetched states that there are after each operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self.sizes: list[int] = []
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is RELOAD:
            storage = out.untyped_storage()
            self._alive[storage.data_ptr()] = (
                weakref.ref(storage),
                storage.nbytes(),
            )
        self.sizes.append(self._bytes())
        return out

    def _bytes(self) -> int:
        return sum(size for ref, size in self._alive.values() if ref() is not None)


def _states_in(trace: acplan.Trace) -> list[int]:
    """Returns the bytes of fetched states in a trace, after each operator of the update."""
    operators = trace.data["operators"]
    fetched = [s for s in trace.data["storages"] if s["born"] >= 0]
    fetched = [s for s in fetched if "reload" in operators[s["born"]]["name"]]
    first = min(s["born"] for s in fetched)
    return [
        sum(s["bytes"] for s in fetched if s["born"] <= k and (s["freed"] or 1e9) > k)
        for k in range(first, len(operators))
    ]


def test_the_device_has_no_more_states_than_three_parts() -> None:
    model = _net()
    options: Any = {"foreach": False}
    wrapped = offload_states(torch.optim.AdamW(model.parameters(), **options), part_bytes=PART)
    trace = acplan.trace(model, torch.randn(4, 32), loss_fn=_loss, optimizer=wrapped)
    plain = acplan.trace(
        model,
        torch.randn(4, 32),
        loss_fn=_loss,
        optimizer=torch.optim.AdamW(model.parameters(), **options),
    )
    states = 2 * sum(p.nbytes for p in model.parameters())
    largest = 2 * max(p.nbytes for p in model.parameters())
    assert 0 < max(_states_in(trace)) < states
    assert max(_states_in(trace)) <= largest + 2 * 2 * PART
    assert plain.peak_bytes - trace.peak_bytes > 0
    assert not wrapped.state
    _train(model, wrapped, steps=1)
    _loss(model(torch.randn(4, 32))).backward()
    with _Fetched() as fetched:
        wrapped.step()
    assert max(fetched.sizes) == max(_states_in(trace))


@pytest.mark.parametrize("in_backward", [False, True], ids=["update", "backward"])
def test_a_plan_of_the_step_is_verified_and_trains_to_the_bit(in_backward: bool) -> None:
    model, same = _net(), _net()
    own = torch.optim.AdamW(model.parameters())
    wrapped = offload_states(own, part_bytes=PART, in_backward=in_backward)
    step: Any = {"loss_fn": _loss, "optimizer": wrapped, "workspaces": False}
    trace = acplan.trace(model, torch.randn(512, 32), **step)
    plan = acplan.plan(trace, "min")
    assert plan.modules
    verification = acplan.verify(model, plan, torch.randn(512, 32), **step)
    assert verification.first_difference() is None, str(verification)
    expected = _train(same, torch.optim.AdamW(same.parameters()))
    _require_equal(expected, _train(acplan.apply(model, plan), wrapped))


def test_gradients_of_two_parts_are_there_in_backward() -> None:
    model = _net()
    own = torch.optim.AdamW(model.parameters(), foreach=False)
    wrapped = offload_states(own, part_bytes=PART, in_backward=True)
    trace = acplan.trace(model, torch.randn(4, 32), loss_fn=_loss, optimizer=wrapped)
    first, last = trace.data["forward_end"], trace.data["backward_end"]
    gradients = [s for s in trace.data["storages"] if s["category"] == "gradient"]
    most = max(
        sum(s["bytes"] for s in gradients if s["born"] <= k < (s["freed"] or last))
        for k in range(first, last)
    )
    largest = max(p.nbytes for p in model.parameters())
    assert 0 < most <= 2 * (PART + largest) < sum(p.nbytes for p in model.parameters())
    assert not wrapped.state


def test_gradients_of_several_passes_are_refused() -> None:
    model = _net()
    wrapped = offload_states(torch.optim.SGD(model.parameters()), in_backward=True)
    _loss(model(torch.randn(4, 32))).backward()
    with pytest.raises(AcplanError, match="a second gradient of a parameter before"):
        _loss(model(torch.randn(4, 32))).backward()
    inputs = torch.randn(4, 32)
    options: Any = {"loss_fn": _loss, "optimizer": wrapped}
    with pytest.raises(AcplanError, match="a second gradient"):
        acplan.trace(_net_of(wrapped), inputs, accumulate=2, **options)
    with pytest.raises(AcplanError, match="clip_grad_norm: .* in_backward"):
        acplan.trace(_net_of(wrapped), inputs, clip_grad_norm=1.0, **options)


def _net_of(optimizer: torch.optim.Optimizer) -> nn.Sequential:
    """Returns the net with the optimizer's parameters."""
    model, parameters = _net(), optimizer.param_groups[0]["params"]
    names = [name for name, _ in model.named_parameters()]
    for name, parameter in zip(names, parameters, strict=True):
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, parameter)
    return model


def test_the_step_waits_for_copies_that_computing_does_not_hide() -> None:
    def waits_ms(rows: int, device: str, **options: Any) -> float:
        make: Any = lambda ps: offload_states(torch.optim.AdamW(ps), **options)  # noqa: E731
        inputs = torch.zeros(rows, 32, device="meta")
        trace = acplan.trace(_net(), inputs, loss_fn=_loss, optimizer=make, device=device)
        operators = trace.data["operators"]
        return sum(o["runtime_ms"] for o in operators if o["name"].startswith("acplan."))

    states = 2 * sum(p.nbytes for p in _net().parameters())
    for device, rates in {"a100": (25.1e9, 25.1e9), "gh200": (297e9, 375e9)}.items():
        # One part: all comes, is updated, and leaves.
        in_one_ms = waits_ms(4, device)
        assert in_one_ms == pytest.approx(sum(states / rate * 1e3 for rate in rates))
        assert 0 < waits_ms(4, device, part_bytes=PART) < in_one_ms
    in_parts_ms, early_ms = (
        waits_ms(1 << 16, "a100", part_bytes=PART, in_backward=is_early)
        for is_early in (False, True)
    )
    assert 0 < early_ms < in_parts_ms


def test_what_cannot_step_in_parts_is_refused() -> None:
    parameters = [nn.Parameter(torch.zeros(3))]

    class Own(torch.optim.AdamW):
        pass

    for optimizer in (torch.optim.LBFGS(parameters), Own(parameters)):
        with pytest.raises(AcplanError, match="offload_states: expected one of torch.optim's"):
            offload_states(optimizer)
    hooked = torch.optim.AdamW(parameters)
    hooked.register_step_post_hook(lambda *_: None)
    with pytest.raises(AcplanError, match="has hooks of its steps"):
        offload_states(hooked)
    with pytest.raises(AcplanError, match="part_bytes"):
        offload_states(torch.optim.AdamW(parameters), part_bytes=0)
    for share in (-0.1, 1.1, True, "half", float("nan")):
        with pytest.raises(AcplanError, match="share: expected a number from 0 to 1"):
            offload_states(torch.optim.AdamW(parameters), share=share)  # type: ignore[arg-type] # what a user may give
    with pytest.raises(AcplanError, match=r"expected a torch.optim.Optimizer"):
        offload_states(parameters)  # type: ignore[arg-type] # what a user may give


@pytest.mark.parametrize("budget", ["min", "100%", 1000])
def test_it_is_a_lever_that_is_compared_with_recomputation(budget: str | int) -> None:
    model = _net()
    step: Any = {"loss_fn": _loss, "optimizer": "adamw-fused", "workspaces": False}
    explanation = acplan.explain(
        model, torch.randn(64, 32), budget=budget, levers=[LEVER], time_limit=0.2, **step
    )  # fmt: skip
    own, lever = explanation.levers
    assert lever.is_measured, lever.why_not
    assert own.step_ms is not None and lever.step_ms is not None
    assert lever.step_ms > own.step_ms
    states, limit = explanation.host_states, explanation.limit
    assert states is not None and limit is not None and states.budget_bytes == limit[0]
    state_bytes = 2 * sum(p.nbytes for p in model.parameters())
    assert states.copies_ms == pytest.approx(2 * state_bytes / 25.1e9 * 1e3)  # in one part
    if budget == 1000:
        assert not states.pays and "No plan fits in 1000 B, with them or without" in str(states)
        return
    # Two traces of the user's give the same figures, and the decision.
    total_ms = []
    for optimizer in ("adamw-fused", "adamw-fused-on-host"):
        trace = acplan.trace(model, torch.randn(64, 32), **step | {"optimizer": optimizer})
        plan = acplan.plan(trace, limit[0], time_limit=0.2)
        step_ms = sum(operator["runtime_ms"] for operator in trace.data["operators"])
        total_ms.append(step_ms + plan.recompute_ms)
    assert [states.plain.total_ms, states.on_host.total_ms] == pytest.approx(total_ms)
    assert states.pays == (total_ms[1] < total_ms[0])
    assert str(states) in str(explanation)


def test_copies_that_cost_less_than_recomputation_pay() -> None:
    states = HostStates(2**30, 2**20, 5.0, Side(100.0, 20.0), Side(105.0, 1.0))
    assert states.pays and "takes 106.0 ms (1.0 by the plan) with them" in str(states)
    assert not HostStates(2**30, 2**20, 5.0, Side(100.0, 5.0), Side(105.0, 1.0)).pays
    nothing = HostStates(2**30, 2**20, 5.0, Side(100.0, None), Side(105.0, 1.0))
    assert nothing.pays and "nothing that fits without: they pay." in str(nothing)


def test_shares_are_tried_where_less_would_do() -> None:
    states = HostStates(2**30, 2**20, 5.0, Side(100.0, 20.0), Side(130.0, 0.0))
    assert states.best_percent == 0 and not states.pays
    states = dataclasses.replace(states, of_shares={50: Side(115.0, 1.0)}, cpu_ms=80.0)
    assert states.best_percent == 50 and states.pays
    assert "without: they do not pay.\n50% of them pay most: with" in str(states)
    assert "share=0.5) it takes 116.0 ms (1.0 by the plan)." in str(states)
    assert "An update on the CPU instead takes about 80.0 ms" in str(states)


def test_the_best_share_is_found() -> None:
    model, inputs = _net(), torch.randn(64, 32)
    step: Any = {"loss_fn": _loss, "optimizer": "adamw-fused", "workspaces": False}
    own = acplan.trace(model, inputs, **step)
    least = acplan.plan(own, "min").peak_bytes
    explanation = acplan.explain(
        model, inputs, budget=least - 2000, levers=[LEVER], time_limit=0.2, **step
    )  # fmt: skip
    states = explanation.host_states
    assert states is not None and states.plain.added_ms is None
    assert 0 < states.best_percent < 100 and len(states.of_shares) == 3
    assert f"share={states.best_percent / 100:g}" in str(states)
    # The plan for a trace of the user's with this share fits.
    name = f"adamw-fused-{states.best_percent}%-on-host"
    trace = acplan.trace(model, inputs, **step | {"optimizer": name})
    assert acplan.plan(trace, least - 2000).peak_bytes <= least - 2000


def test_a_name_may_say_where_states_wait() -> None:
    model, inputs = _net(), torch.randn(4, 32)
    for name, is_early in (("adamw-on-host", False), ("adamw-on-host-in-backward", True)):
        trace = acplan.trace(model, inputs, loss_fn=_loss, optimizer=name)
        own = offload_states(torch.optim.AdamW(model.parameters()), in_backward=is_early)
        expected = acplan.trace(model, inputs, loss_fn=_loss, optimizer=own)
        assert trace.live_bytes == expected.live_bytes
    with pytest.raises(AcplanError, match="expected one of torch.optim's .*, found _Blockwise"):
        acplan.trace(model, inputs, loss_fn=_loss, optimizer="adamw-8bit-on-host")
