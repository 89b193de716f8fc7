"""Training steps of trainers: TRL and sentence-transformers."""

import importlib
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from acplan._step.training_step import TrainingStep
from third_party.registry import add
from third_party.small_models import small, small_llama, tokenizer

_PAIRS = [
    {"prompt": "what is the cat ?", "chosen": "the cat is good .", "rejected": "a dog ran ."},
    {"prompt": "why ?", "chosen": "it is red .", "rejected": "the log is blue on the mat ."},
]
_TEXTS = [{"text": "the cat sat on the mat ."}, {"text": "a dog ran on the red log then sat ."}]


def _trainer(kind: str, rows: list[dict[str, Any]], model: Any = None, **options: Any) -> Any:
    """Returns a trainer of TRL with small models and these rows."""
    import datasets
    import trl

    extra = options.pop("extra", {})
    where = options.pop("where", "")
    source = importlib.import_module(where) if where else trl
    arguments = getattr(source, f"{kind}Config")(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=options.pop("batch", 2),
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **options,
    )
    return getattr(source, f"{kind}Trainer")(
        model=_stored(model if model is not None else small_llama()),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer(),
        **extra,
    )


def _stored(model: Any) -> Any:
    """Returns the model as it is loaded from a folder, where trainers look for it again."""
    folder = pathlib.Path(tempfile.gettempdir()) / "acplan-third-party" / type(model).__name__
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder)


def _of_trainer(trainer: Any) -> TrainingStep:
    """Returns the step that the trainer computes of its first batch."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # as the training loop sets it
    batch = next(iter(trainer.get_train_dataloader()))
    inputs = trainer._prepare_inputs(batch)

    def loss(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return trainer.compute_loss(model, inputs)

    return TrainingStep(trainer.model, (inputs,), forward_fn=loss)


def _trl(name: str, make: Callable[[], Any], module: str) -> None:
    add("trl", name, lambda: _of_trainer(make()), f"trl.{module}")


_trl("SFT", lambda: _trainer("SFT", _TEXTS), "trainer.sft_trainer")
_trl(
    "SFT, packed",
    lambda: _trainer("SFT", _TEXTS * 4, packing=True, max_length=24),
    "trainer.sft_trainer",
)
_trl(
    "SFT with LoRA",
    lambda: _trainer("SFT", _TEXTS, extra={"peft_config": _lora()}),
    "trainer.sft_trainer",
)
_trl(
    "SFT of a mixture of experts",
    lambda: _trainer("SFT", _TEXTS, model=_mixtral()),
    "trainer.sft_trainer",
)
_trl("DPO", lambda: _trainer("DPO", _PAIRS), "trainer.dpo_trainer")
_trl("DPO, IPO loss", lambda: _trainer("DPO", _PAIRS, loss_type="ipo"), "trainer.dpo_trainer")
_trl(
    "DPO with LoRA",
    lambda: _trainer("DPO", _PAIRS, extra={"peft_config": _lora()}),
    "trainer.dpo_trainer",
)
_trl("reward", lambda: _trainer("Reward", _PAIRS, model=_scorer()), "trainer.reward_trainer")
_trl(
    "KTO",
    lambda: _trainer(
        "KTO",
        [
            {"prompt": "what is it ?", "completion": "it is a cat .", "label": True},
            {"prompt": "why ?", "completion": "the log is bad .", "label": False},
        ],
    ),
    "trainer.kto_trainer",
)
_trl(
    "ORPO",
    lambda: _trainer("ORPO", _PAIRS, where="trl.experimental.orpo", max_length=24),
    "experimental.orpo",
)
_trl(
    "CPO",
    lambda: _trainer("CPO", _PAIRS, where="trl.experimental.cpo", max_length=24),
    "experimental.cpo",
)


def _rewarded(kind: str, **options: Any) -> Any:
    def lengths(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text) % 5) for text in completions]

    return _trainer(
        kind,
        [{"prompt": "what is the cat ?"}, {"prompt": "why ?"}],
        num_generations=2,
        max_completion_length=6,
        extra={"reward_funcs": lengths},
        **options,
    )


_trl("GRPO", lambda: _rewarded("GRPO"), "trainer.grpo_trainer")
_trl("GRPO with a KL term", lambda: _rewarded("GRPO", beta=0.1), "trainer.grpo_trainer")
_trl("RLOO", lambda: _rewarded("RLOO"), "trainer.rloo_trainer")


def _lora(**options: Any) -> Any:
    from peft import LoraConfig

    defaults = {"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "up_proj"]}
    return LoraConfig(task_type="CAUSAL_LM", **(defaults | options))


def _mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            **small(), num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
        )
    )


def _scorer() -> Any:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    return LlamaForSequenceClassification(LlamaConfig(**small(num_labels=1)))


def _sentences() -> Any:
    import sentence_transformers
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**small()))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        try:
            from sentence_transformers.sentence_transformer import modules
        except ImportError:
            from sentence_transformers import models as modules
        body = modules.Transformer(folder, max_seq_length=16)
    pooling = modules.Pooling(32)
    return sentence_transformers.SentenceTransformer(modules=[body, pooling], device="cpu")


def _sentence_step(
    make: Callable[[Any, Any], nn.Module], columns: int, labels: Tensor | None
) -> TrainingStep:
    from sentence_transformers.sentence_transformer import losses

    model = _sentences()
    loss = make(losses, model)
    texts = ["the cat sat", "a dog ran on the log", "why is it red ?", "one two three"]
    features = []
    for k in range(columns):
        features.append(dict(model.preprocess(texts[k:] + texts[:k])))

    def forward_loss(loss: nn.Module, features: Any, labels: Any) -> Tensor:
        value = loss([dict(each) for each in features], labels)
        return value if isinstance(value, Tensor) else sum(value.values())

    # The loss is the module: it holds the model, as it does for the trainer.
    return TrainingStep(loss, (features, labels), forward_fn=forward_loss)


for _name, (_loss, _columns, _labels) in {
    "multiple negatives ranking": (lambda m, s: m.MultipleNegativesRankingLoss(s), 2, None),
    "GradCache: cached multiple negatives": (
        lambda m, s: m.CachedMultipleNegativesRankingLoss(s, mini_batch_size=2), 2, None
    ),
    "GradCache with a guide": (
        lambda m, s: m.CachedGISTEmbedLoss(s, _sentences(), mini_batch_size=2), 2, None
    ),
    "Matryoshka": (
        lambda m, s: m.MatryoshkaLoss(s, m.MultipleNegativesRankingLoss(s), [32, 16]), 2, None
    ),
    "CoSENT": (lambda m, s: m.CoSENTLoss(s), 2, torch.tensor([0.1, 0.5, 0.9, 0.3])),
    "triplet": (lambda m, s: m.TripletLoss(s), 3, None),
    "batch-hard triplet": (
        lambda m, s: m.BatchHardTripletLoss(s), 1, torch.tensor([0, 0, 1, 1])
    ),
    "contrastive": (
        lambda m, s: m.OnlineContrastiveLoss(s), 2, torch.tensor([1, 0, 1, 0])
    ),
}.items():  # fmt: skip
    add(
        "sentence-transformers",
        _name,
        lambda a=_loss, b=_columns, c=_labels: _sentence_step(a, b, c),
        "sentence_transformers.sentence_transformer.losses",
    )
