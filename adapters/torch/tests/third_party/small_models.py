"""Small language models, and a tokenizer of a few words."""

import functools
from typing import Any

from torch import nn

from acplan._step.training_step import TrainingStep
from third_party.registry import words

_VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "<s>",
    "</s>",
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "mat",
    "log",
    "red",
    "blue",
    "why",
    "how",
    "what",
    "is",
    "it",
    "good",
    "bad",
    "user",
    "says",
    "then",
    ":",
    "?",
    ".",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
]


@functools.cache
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: k for k, word in enumerate(_VOCABULARY)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    result = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", bos_token="<s>",
        eos_token="</s>", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip
    result.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} </s> {% endfor %}"
    )
    return result


def small(**options: Any) -> dict[str, Any]:
    return {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "pad_token_id": 0, "bos_token_id": 4, "eos_token_id": 5, "use_cache": False,
    } | options  # fmt: skip


def small_llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**small(**options)))


def causal(model: nn.Module) -> TrainingStep:
    tokens = words(vocabulary=36)
    return TrainingStep(model, kwargs={"input_ids": tokens, "labels": tokens})
