"""Training steps of trainers and adapters of language models: TRL, sentence-transformers,
PEFT and others."""

import functools
import importlib
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from acplan.training_steps import TrainingStep
from torch import Tensor, nn
from torch.nn import functional as F

from third_party.registry import add, classes, entry, words

_VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] <s> </s> the a cat dog sat ran on mat log red blue why how"
    " what is it good bad user says then : ? . one two three four five six seven"
).split()


@functools.cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: k for k, word in enumerate(_VOCABULARY)}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", bos_token="<s>",
        eos_token="</s>", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip
    found.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} </s> {% endfor %}"
    )
    return found


def _small(**options: Any) -> dict[str, Any]:
    return {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "pad_token_id": 0, "bos_token_id": 4, "eos_token_id": 5, "use_cache": False,
    } | options  # fmt: skip


def _llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_small(**options)))


def _qwen() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_small()))


_PAIRS = [
    {"prompt": "what is the cat ?", "chosen": "the cat is good .", "rejected": "a dog ran ."},
    {"prompt": "why ?", "chosen": "it is red .", "rejected": "the log is blue on the mat ."},
]
_TEXTS = [{"text": "the cat sat on the mat ."}, {"text": "a dog ran on the red log then sat ."}]


def _trainer(kind: str, rows: list[dict[str, Any]], model: Any = None, **options: Any) -> Any:
    """A trainer of TRL with small models and these rows."""
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
        model=_stored(model if model is not None else _llama()),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=_tokenizer(),
        **extra,
    )


def _stored(model: Any) -> Any:
    """The model as it is loaded from a folder, where trainers look for it again."""
    folder = pathlib.Path(tempfile.gettempdir()) / "acplan-third-party" / type(model).__name__
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder)


def _of_trainer(trainer: Any) -> TrainingStep:
    """What it computes of its first batch."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # What the training loop sets.
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

    chosen = {"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "up_proj"]}
    return LoraConfig(task_type="CAUSAL_LM", **(chosen | options))


def _mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            **_small(), num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
        )
    )


def _scorer() -> Any:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    return LlamaForSequenceClassification(LlamaConfig(**_small(num_labels=1)))


# --- PEFT ---


def _causal(model: nn.Module) -> TrainingStep:
    tokens = words(vocabulary=36)
    return TrainingStep(model, kwargs={"input_ids": tokens, "labels": tokens})


def _peft(make: Callable[[Any], Any], model: Callable[[], Any] = _llama) -> TrainingStep:
    import peft

    return _causal(peft.get_peft_model(model(), make(peft)))


_LAYERS = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj", "down_proj"]}
for _name, _make in {
    "LoRA": lambda p: p.LoraConfig(r=4, lora_dropout=0.1, **_LAYERS),
    "rsLoRA of all layers": lambda p: p.LoraConfig(
        r=4, use_rslora=True, task_type="CAUSAL_LM", target_modules="all-linear"
    ),
    "DoRA": lambda p: p.LoraConfig(r=4, use_dora=True, **_LAYERS),
    "LoHa": lambda p: p.LoHaConfig(r=4, **_LAYERS),
    "LoKr": lambda p: p.LoKrConfig(r=4, **_LAYERS),
    "AdaLoRA": lambda p: p.AdaLoraConfig(init_r=4, target_r=2, total_step=100, **_LAYERS),
    "IA3": lambda p: p.IA3Config(feedforward_modules=["down_proj"], **_LAYERS),
    "OFT": lambda p: p.OFTConfig(oft_block_size=8, **_LAYERS),
    "BOFT": lambda p: p.BOFTConfig(boft_block_size=8, **_LAYERS),
    "VeRA": lambda p: p.VeraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj"]),
    "FourierFT": lambda p: p.FourierFTConfig(n_frequency=16, **_LAYERS),
    "prompt tuning": lambda p: p.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4
    ),
    "prefix tuning": lambda p: p.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4
    ),
    "P-tuning": lambda p: p.PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16
    ),
    "layer norm tuning": lambda p: p.LNTuningConfig(
        task_type="CAUSAL_LM", target_modules=["input_layernorm", "post_attention_layernorm"]
    ),
}.items():
    add("peft", _name, lambda make=_make: _peft(make))


def _quantised(kind: str) -> Any:
    """The small model, its layers quantised by bitsandbytes."""
    import bitsandbytes as bnb

    model = _llama(hidden_size=64, intermediate_size=128)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if not isinstance(child, nn.Linear) or name == "lm_head":
                continue
            shape = (child.in_features, child.out_features)
            if kind == "8bit":
                made = bnb.nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False)
                made.weight = bnb.nn.Int8Params(child.weight.data, requires_grad=False)
            else:
                made = bnb.nn.Linear4bit(
                    *shape, bias=False, compute_dtype=torch.float32, quant_type="nf4"
                )
                made.weight = bnb.nn.Params4bit(
                    child.weight.data, requires_grad=False, quant_type="nf4"
                )
            setattr(module, name, made.to("cpu"))
    model.is_loaded_in_8bit = kind == "8bit"
    model.is_loaded_in_4bit = kind == "4bit"
    return model


@entry("bitsandbytes")
def qlora_of_4_bits() -> TrainingStep:
    return _peft(
        lambda p: p.LoraConfig(r=4, lora_dropout=0.1, **_LAYERS), lambda: _quantised("4bit")
    )


@entry("bitsandbytes")
def lora_of_8_bits() -> TrainingStep:
    return _peft(lambda p: p.LoraConfig(r=4, **_LAYERS), lambda: _quantised("8bit"))


@entry("torchao")
def weight_only_int8_with_lora() -> TrainingStep:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = _llama()
    quantize_(model, Int8WeightOnlyConfig())
    return _peft(lambda p: p.LoraConfig(r=4, **_LAYERS), lambda: model)


@entry("torchao", "torchao.quantization.qat")
def quantisation_aware_training() -> TrainingStep:
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    model = _llama()
    config = QATConfig(
        activation_config=IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False),
        weight_config=IntxFakeQuantizeConfig(torch.int4, group_size=32),
        step="prepare",
    )
    quantize_(model, config)
    return _causal(model)


@entry("loralib")
def lora_layers_by_hand() -> TrainingStep:
    import loralib

    model = nn.Sequential(
        loralib.Embedding(64, 32, r=4),
        *(
            nn.Sequential(loralib.Linear(32, 32, r=4, lora_dropout=0.1), nn.GELU())
            for _ in range(3)
        ),
        loralib.MergedLinear(32, 64, r=4, enable_lora=[True, False]),
    )
    loralib.mark_only_lora_as_trainable(model)
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda model, x: F.cross_entropy(model(x).flatten(0, 1), x.flatten()),
    )


# --- sentence-transformers ---


def _sentences() -> Any:
    import sentence_transformers
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**_small()))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
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

    def of(loss: nn.Module, features: Any, labels: Any) -> Tensor:
        found = loss([dict(each) for each in features], labels)
        return found if isinstance(found, Tensor) else sum(found.values())

    # The loss is the module: it holds the model, as it does for the trainer.
    return TrainingStep(loss, (features, labels), forward_fn=of)


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
    "batch-hard triplet": (lambda m, s: m.BatchHardTripletLoss(s), 1, torch.tensor([0, 0, 1, 1])),
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


# --- Language models of other packages ---


@entry("litgpt", "litgpt.model")
def pythia_and_chunked_cross_entropy() -> TrainingStep:
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    model = GPT(Config(block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=32))
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: chunked_cross_entropy(m(x)[:, :-1], x[:, 1:], chunk_size=8),
    )


@entry("litgpt", "litgpt.lora")
def llama_with_lora() -> TrainingStep:
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable

    model = GPT(
        Config(
            block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=32, lora_r=4,
            lora_alpha=8, lora_dropout=0.1, lora_query=True, lora_value=True,
            norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=64,
        )
    )  # fmt: skip
    mark_only_lora_as_trainable(model)
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()),
    )


@entry("litgpt", "litgpt.model")
def mixture_of_experts() -> TrainingStep:
    from litgpt import GPT, Config

    model = GPT(
        Config(
            block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=32,
            mlp_class_name="LLaMAMoE", norm_class_name="RMSNorm", intermediate_size=64,
            n_expert=4, n_expert_per_token=2,
        )
    )  # fmt: skip
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()),
    )


def _with_nf4() -> None:
    """Has torchao's module of 4 bits under the name by which torchtune imports it."""
    sys.modules["torchao.dtypes.nf4tensor"] = importlib.import_module(
        "torchao.quantization.quantize_.workflows.nf4.nf4_tensor"
    )


def _tune(model: nn.Module) -> TrainingStep:
    from torchtune.modules.loss import CEWithChunkedOutputLoss

    chunked = CEWithChunkedOutputLoss(num_output_chunks=4)
    model.set_num_output_chunks(4)
    tokens = words()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return chunked(model(x), F.pad(x[:, 1:], (0, 1), value=-100))

    return TrainingStep(model, (tokens,), forward_fn=loss)


@entry("torchtune", "torchao.quantization")
def llama_and_chunked_loss() -> TrainingStep:
    _with_nf4()
    from torchtune.models.llama3_2 import llama3_2

    return _tune(
        llama3_2(
            vocab_size=64, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32,
            max_seq_len=64, intermediate_dim=64,
        )
    )  # fmt: skip


@entry("torchtune", "torchao.quantization")
def qlora_of_llama() -> TrainingStep:
    _with_nf4()
    from torchtune.models.llama3 import lora_llama3
    from torchtune.modules.peft import get_adapter_params, set_trainable_params

    model = lora_llama3(
        ["q_proj", "v_proj"], apply_lora_to_mlp=True, vocab_size=64, num_layers=2,
        num_heads=4, num_kv_heads=2, embed_dim=64, max_seq_len=64, intermediate_dim=128,
        lora_rank=4, lora_alpha=8, lora_dropout=0.1,
    )  # fmt: skip
    set_trainable_params(model, get_adapter_params(model))
    return _tune(model)


@entry("torchtitan", "torchtitan.models.flux")
def double_stream_blocks_of_flux() -> TrainingStep:
    from torchtitan.models import flux
    from torchtitan.models.flux.model.layers import EmbedND

    config = flux._make_double_block_config(64, 4, 2.0, True)
    blocks = nn.ModuleList([config.build(), config.build()])
    for weight in blocks.parameters():
        nn.init.normal_(weight, std=0.1)
    places = EmbedND.Config(dim=16, theta=10_000, axes_dim=(4, 6, 6)).build()

    def loss(blocks: Any, image: Tensor, text: Tensor, vec: Tensor, ids: Tensor) -> Tensor:
        pe = places(ids)
        for block in blocks:
            image, text = block(img=image, txt=text, vec=vec, pe=pe)
        return image.square().mean() + text.square().mean()

    return TrainingStep(
        blocks,
        (
            torch.randn(1, 16, 64),
            torch.randn(1, 8, 64),
            torch.randn(1, 64),
            torch.arange(24.0).view(1, 24, 1).expand(1, 24, 3),
        ),
        forward_fn=loss,
    )


@entry("mambapy", "mambapy.mamba")
def mamba_language_model() -> TrainingStep:
    from mambapy.mamba import Mamba, MambaConfig

    body = Mamba(MambaConfig(d_model=16, n_layers=2))
    model = nn.Sequential(nn.Embedding(64, 16), body, nn.Linear(16, 64))
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()),
    )


@entry("openai-whisper", "whisper.model")
def whisper() -> TrainingStep:
    from whisper.model import ModelDimensions, Whisper

    model = Whisper(ModelDimensions(16, 32, 32, 2, 2, 64, 16, 32, 2, 2))
    for weight in model.parameters():  # The package leaves some as memory has them.
        nn.init.normal_(weight, std=0.1)
    tokens = words()
    return TrainingStep(
        model,
        (torch.randn(2, 16, 64), tokens),
        forward_fn=lambda m, x, t: F.cross_entropy(m(x, t).flatten(0, 1), t.flatten()),
    )


def _x_transformers(make: Callable[[Any], nn.Module]) -> TrainingStep:
    import x_transformers

    return TrainingStep(
        make(x_transformers), (words(2, 17),), loss_fn=lambda out: getattr(out, "loss", out)
    )


def _decoder(x: Any, **options: Any) -> nn.Module:
    layers = x.Decoder(dim=32, depth=2, heads=2, **options)
    body = x.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)
    return x.AutoregressiveWrapper(body)


for _name, _options in {
    "decoder": {},
    "decoder with rotary, flash, GLU": {
        "rotary_pos_emb": True, "attn_flash": True, "ff_glu": True, "use_rmsnorm": True
    },
    "decoder with ALiBi and talking heads": {
        "alibi_pos_bias": True, "attn_pre_talking_heads": True
    },
    "decoder with dropped layers and sandwich norm": {
        "layer_dropout": 0.2, "sandwich_norm": True, "attn_dropout": 0.1
    },
    "decoder with macaron and gated values": {"macaron": True, "attn_gate_values": True},
    "decoder with hyper connections": {"num_residual_streams": 2},
}.items():  # fmt: skip
    add(
        "x-transformers",
        _name,
        lambda options=_options: _x_transformers(lambda x: _decoder(x, **options)),
    )


@entry("x-transformers")
def encoder_and_decoder() -> TrainingStep:
    import x_transformers

    model = x_transformers.XTransformer(
        dim=32, enc_num_tokens=64, enc_depth=2, enc_heads=2, enc_max_seq_len=16,
        dec_num_tokens=64, dec_depth=2, dec_heads=2, dec_max_seq_len=16,
    )  # fmt: skip
    return TrainingStep(
        model,
        (words(), words()),
        {"mask": torch.ones(2, 16, dtype=torch.bool)},
        loss_fn=lambda loss: loss,
    )


@entry("x-transformers")
def non_autoregressive() -> TrainingStep:
    return _x_transformers(
        lambda x: x.NonAutoregressiveWrapper(
            x.TransformerWrapper(
                num_tokens=65, max_seq_len=17, logits_dim=64,
                attn_layers=x.Encoder(dim=32, depth=2, heads=2),
            ),
            mask_id=64,
        )
    )  # fmt: skip


@entry("titans-pytorch")
def memory_as_context() -> TrainingStep:
    from titans_pytorch import MemoryAsContextTransformer

    model = MemoryAsContextTransformer(
        num_tokens=64, dim=16, depth=2, segment_len=8, num_persist_mem_tokens=2,
        num_longterm_mem_tokens=2, dim_head=8, heads=2,
    )  # fmt: skip
    return TrainingStep(
        model, (words(1, 17),), {"return_loss": True}, loss_fn=lambda loss: loss
    )


@entry("soft-moe-pytorch")
def soft_mixture_of_experts() -> TrainingStep:
    from soft_moe_pytorch import SoftMoE

    return TrainingStep(SoftMoE(dim=32, seq_len=16, num_experts=4), (torch.randn(2, 16, 32),))


@entry("performer-pytorch")
def performer() -> TrainingStep:
    from performer_pytorch import AutoregressiveWrapper, PerformerLM

    model = AutoregressiveWrapper(
        PerformerLM(num_tokens=64, max_seq_len=16, dim=32, depth=2, heads=2, causal=False)
    )
    return TrainingStep(
        model, (words(2, 17),), {"return_loss": True}, loss_fn=lambda loss: loss
    )


@entry("reformer-pytorch")
def reformer() -> TrainingStep:
    from reformer_pytorch import ReformerLM

    model = ReformerLM(
        num_tokens=64, dim=32, depth=2, max_seq_len=32, heads=2, bucket_size=8, n_hashes=2,
        causal=True, lsh_dropout=0.1,
    )  # fmt: skip
    tokens = words(2, 32)
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
    )


@entry("linear-attention-transformer")
def linear_attention() -> TrainingStep:
    from linear_attention_transformer import LinearAttentionTransformerLM

    model = LinearAttentionTransformerLM(
        num_tokens=64, dim=32, heads=2, depth=2, max_seq_len=16, causal=False, blindspot_size=1
    )
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
    )


@entry("perceiver-pytorch")
def perceiver() -> TrainingStep:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3, input_axis=2, num_freq_bands=4, max_freq=10.0, depth=2,
        num_latents=8, latent_dim=32, num_classes=10, cross_dim_head=8, latent_dim_head=8,
        latent_heads=2, weight_tie_layers=True,
    )  # fmt: skip
    return TrainingStep(
        model,
        (torch.rand(2, 16, 16, 3), classes()),
        forward_fn=lambda m, x, y: F.cross_entropy(m(x), y),
    )


@entry("lion-pytorch")
def lion_with_a_small_transformer() -> TrainingStep:
    from lion_pytorch import Lion

    step = _causal(_llama())
    return TrainingStep(step.model, kwargs=step.kwargs, optimizer=Lion(step.model.parameters()))


@entry("fairscale", "fairscale.nn")
def checkpoint_wrappers() -> TrainingStep:
    from fairscale.nn import checkpoint_wrapper

    model = nn.Sequential(
        nn.Linear(32, 32),
        *(
            checkpoint_wrapper(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)))
            for _ in range(3)
        ),
    )
    return TrainingStep(model, (torch.randn(8, 32),))
