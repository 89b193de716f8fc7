"""Caches of keys and values: a layer that runs again adds nothing to them, whoever asks for
one, and what a model says of them stays as it is."""

import copy
import json
import pathlib
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan import Plan, PlannedModule

TOKENS = torch.arange(16).reshape(2, 8) + 3


def _llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=50,
        # Which does not run where there are more keys than expected.
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


def _t5() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=32,
        d_ff=32,
        d_kv=8,
        num_layers=2,
        num_heads=2,
        vocab_size=50,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


LAYERS = {
    _llama: "LlamaForCausalLM.model.layers",
    _t5: "T5ForConditionalGeneration.decoder.block",
}


def _plan(make: Any) -> Plan:
    return Plan(tuple(PlannedModule(f"{LAYERS[make]}.{place}") for place in (0, 1)))


def _trained(model: nn.Module, **arguments: Any) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(input_ids=TOKENS, labels=TOKENS, **arguments).loss
    loss.backward()
    return [loss, *(p.grad for p in model.parameters())]


def _assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Compares with a tolerance: what a cache joins lies otherwise in memory, and other kernels
    round otherwise. Keys that are there twice would be noticed."""
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("is_said_later", [False, True])
def test_a_cache_that_is_asked_for_is_not_made(make: Any, is_said_later: bool) -> None:
    model = make()
    arguments = {} if is_said_later else {"use_cache": True}
    expected = _trained(model, **arguments)
    acplan.apply(model, _plan(make))
    model.config.use_cache = True
    _assert_same(_trained(model, **arguments), expected)


def test_configurations_are_saved_as_they_are(tmp_path: pathlib.Path) -> None:
    model = acplan.apply(_llama(), _plan(_llama))
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["use_cache"] is True
    loaded_model = type(model).from_pretrained(tmp_path)
    assert loaded_model(TOKENS).past_key_values.get_seq_length() == 8


def test_without_gradients_caches_are_those_without_a_plan() -> None:
    model = _llama()
    expected = model.generate(TOKENS, max_new_tokens=4, do_sample=False)
    acplan.apply(model, _plan(_llama))
    assert torch.equal(model.generate(TOKENS, max_new_tokens=4, do_sample=False), expected)
    with torch.no_grad():
        assert model(TOKENS).past_key_values.get_seq_length() == 8
    assert model(TOKENS).past_key_values is None


def test_compiled_models_have_caches_without_gradients() -> None:
    model = acplan.apply(_llama(), _plan(_llama))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected = model(TOKENS).logits
        output = compiled(TOKENS)
    assert output.past_key_values.get_seq_length() == 8
    torch.testing.assert_close(output.logits, expected)


def test_nothing_is_left_of_it() -> None:
    """Copies have their own, and models that share a configuration."""
    model = _llama()
    other = type(model)(model.config)
    hooks = [dict(m._forward_pre_hooks) for m in model.modules()]
    expected = _trained(other)
    for net in (model, other):
        acplan.apply(net, _plan(_llama))
    copied_model = copy.deepcopy(model)
    acplan.remove(model)
    assert [dict(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert not any(m._forward_pre_hooks_with_kwargs for m in model.modules())
    assert model(TOKENS).past_key_values.get_seq_length() == 8
    assert copied_model(TOKENS).past_key_values is None
    assert acplan.remove(copied_model)(TOKENS).past_key_values.get_seq_length() == 8
    _assert_same(_trained(other), expected)


def test_a_step_that_asks_for_a_cache_is_traced_without() -> None:
    model = _llama()
    arguments = {"input_ids": TOKENS, "labels": TOKENS}
    expected = acplan.trace(model, **arguments).data["operators"]
    actual = acplan.trace(model, use_cache=True, **arguments).data["operators"]
    assert [op["name"] for op in actual] == [op["name"] for op in expected]


def test_a_cache_that_is_given_is_for_the_recomputation_what_it_was() -> None:
    """As prefixes that PEFT trains."""
    model = _llama()

    def new_cache() -> dict[str, Any]:
        cache = transformers.DynamicCache(config=model.config)
        torch.manual_seed(1)
        for layer in range(2):
            cache.update(torch.randn(2, 2, 4, 16), torch.randn(2, 2, 4, 16), layer)
        return {"past_key_values": cache}

    expected = _trained(model, **new_cache())
    acplan.apply(model, _plan(_llama), strict=True)
    cache = new_cache()
    _assert_same(_trained(model, **cache), expected)
    assert cache["past_key_values"].get_seq_length() == 12
