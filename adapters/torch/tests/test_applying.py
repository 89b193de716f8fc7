import copy
import itertools
import pathlib

import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan import AcplanError, Plan, PlannedModule, PlannedOperator, apply, trace
from zoo import EXAMPLES, plans


# The CPU runs other attention kernels than the trace shows.
@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("name", ["t5", "shared"])
def test_losses_and_gradients_are_equal(name: str) -> None:
    example = EXAMPLES[name]()
    torch.manual_seed(0)
    model, inputs = example.make().train(), example.inputs()
    traced = trace(*example.on_meta()[:1], **example.on_meta()[1])

    def step(net: nn.Module) -> tuple[torch.Tensor, list[torch.Tensor]]:
        torch.manual_seed(1)
        out = net(**inputs)
        loss = out if isinstance(out, torch.Tensor) else out.loss
        loss.backward()
        trained = [p for p in net.parameters() if p.requires_grad]
        return loss.detach(), [p.grad for p in trained if p.grad is not None]

    loss, gradients = step(copy.deepcopy(model))
    assert gradients
    for label, plan in plans(example, traced):
        planned_loss, planned_gradients = step(apply(copy.deepcopy(model), plan))
        assert torch.equal(loss, planned_loss), label
        assert len(gradients) == len(planned_gradients)
        for expected, actual in zip(gradients, planned_gradients):
            assert torch.equal(expected, actual), label


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))


def test_policies_are_obeyed_and_gradients_equal() -> None:
    operators = (("aten.t.default", False), ("aten.addmm.default", True))
    plan = Plan(
        (
            PlannedModule(
                "Sequential.0",
                tuple(
                    PlannedOperator(*operator)
                    for operator in (*operators, ("aten.relu.default", False))
                ),
            ),
        )
    )
    model, x = _net(), torch.randn(3, 4)
    planned_model = apply(copy.deepcopy(model), plan)
    model(x).sum().backward()
    planned_model(x).sum().backward()
    for expected, actual in zip(model.parameters(), planned_model.parameters()):
        assert torch.equal(expected.grad, actual.grad)


def test_other_operators_are_refused_loudly() -> None:
    plan = Plan((PlannedModule("Sequential.0", (PlannedOperator("mm", True),)),))
    with pytest.raises(AcplanError, match="operator 0 is aten.t.default"):
        apply(_net(), plan, strict=True)(torch.randn(3, 4))
    few = Plan((PlannedModule("Sequential.0", (PlannedOperator("t", False),)),))
    with pytest.raises(AcplanError, match="expects no more operators"):
        apply(_net(), few, strict=True)(torch.randn(3, 4))


def test_unknown_modules_are_refused_and_nothing_is_wrapped() -> None:
    model = _net()
    plan = Plan((PlannedModule("Sequential.0"), PlannedModule("Sequential.7")))
    with pytest.raises(AcplanError, match="no module 'Sequential.7'"):
        apply(model, plan)
    assert isinstance(model[0], nn.Sequential)


def test_the_whole_model_can_be_a_unit() -> None:
    model = apply(_net(), Plan((PlannedModule("Sequential"),)))
    model(torch.randn(3, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_plan_files(tmp_path: pathlib.Path) -> None:
    plan = Plan((PlannedModule("Net.a", (PlannedOperator("mm", True),)),))
    plan.save(tmp_path / "plan.json", model="Net")
    assert Plan.load(tmp_path / "plan.json").modules == plan.modules
    for text, message in [
        ("{}", "acplan.plan"),
        ("nothing", "plan.json"),
        ('{"format": "acplan.plan", "version": 1, "status": "no_plan"}', "no_plan"),
        ('{"format": "acplan.plan", "version": 1, "status": "optimal"}', "modules"),
    ]:
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(AcplanError, match=message):
            Plan.load(tmp_path / "plan.json")


def test_transformers_returns_what_units_make() -> None:
    """It puts hooks on modules that it looks for by class: routers, layers, attention."""
    config = transformers.MixtralConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=50,
        attn_implementation="eager",
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(config)
    tokens = torch.randint(50, (2, 8))
    outputs = dict.fromkeys(
        ("output_router_logits", "output_hidden_states", "output_attentions"), True
    )
    # The first call puts the hooks there: with the plan, or before it.
    with_hooks = copy.deepcopy(model)
    expected = with_hooks(tokens, labels=tokens, **outputs)
    layers = "MixtralForCausalLM.model.layers"
    for start, fqns in itertools.product(
        (model, with_hooks),
        (
            [f"{layers}.0.mlp.gate", f"{layers}.1.self_attn"],
            [f"{layers}.0", f"{layers}.1.mlp"],
        ),
    ):
        planned_model = apply(
            copy.deepcopy(start), Plan(tuple(PlannedModule(fqn) for fqn in fqns))
        )
        actual = planned_model(tokens, labels=tokens, **outputs)
        assert torch.equal(actual.loss, expected.loss)
        for name in ("router_logits", "hidden_states", "attentions"):
            assert len(actual[name]) == len(expected[name])
            assert all(map(torch.equal, actual[name], expected[name]))


def test_caches_do_not_grow_where_layers_run_again() -> None:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=50,
    )
    assert config.use_cache  # by default
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(50, (2, 8))
    expected = model(tokens, labels=tokens)
    expected.loss.backward()
    assert expected.past_key_values.get_seq_length() == 8
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    layers = ("LlamaForCausalLM.model.layers.0", "LlamaForCausalLM.model.layers.1")
    apply(model, Plan(tuple(map(PlannedModule, layers))))
    actual = model(tokens, labels=tokens)
    actual.loss.backward()
    assert actual.past_key_values is None
    assert torch.equal(actual.loss, expected.loss)
    assert all(
        torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True)
    )
    acplan.remove(model)
    assert model.config.use_cache


def test_bytes_of_a_plan_are_whole_numbers_however_large() -> None:
    most = 2**62 + 1  # which no float is
    plan = Plan((), data={"peak_bytes": most, "baseline": {"peak_bytes": most + 2}})
    assert (plan.peak_bytes, plan.baseline_peak_bytes) == (most, most + 2)
