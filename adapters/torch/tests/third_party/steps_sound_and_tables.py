"""Training steps of packages for sound, tables, time series, spikes and control."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, classes, entry, own

# --- Sound ---


@entry("torchaudio", "torchaudio.models")
def conformer_and_ctc() -> TrainingStep:
    from torchaudio.models import Conformer

    model = nn.ModuleDict({"body": Conformer(16, 2, 32, 2, 7), "head": nn.Linear(16, 10)})

    def loss(model: Any, x: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        out, lengths = model["body"](x, lengths)
        logits = model["head"](out).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(logits, labels, lengths, torch.tensor([3, 2]))

    return TrainingStep(
        model,
        (torch.randn(2, 12, 16), torch.tensor([12, 9]), torch.randint(1, 10, (2, 3))),
        forward_fn=loss,
    )


@entry("torchaudio", "torchaudio.models")
def separation_in_time() -> TrainingStep:
    from torchaudio.models import ConvTasNet

    model = ConvTasNet(2, 8, 16, 3, 8, 16, 2, 2)
    return TrainingStep(model, (torch.randn(2, 1, 128),))


@entry("torchaudio", "torchaudio.models")
def wav2vec_and_layer_drop() -> TrainingStep:
    from torchaudio.models import wav2vec2_model

    model = wav2vec2_model(
        "group_norm", [(16, 10, 5), (16, 3, 2)], False, 16, 0.0, 4, 2, 2, 2, 0.1, 32, 0.1, 0.1,
        False, 0.2, 8,
    )  # fmt: skip
    return TrainingStep(model, (torch.randn(2, 400),))


@entry("torchaudio", "torchaudio.models")
def tacotron() -> TrainingStep:
    from torchaudio.models import Tacotron2

    model = Tacotron2(
        n_mels=8, n_symbol=20, symbol_embedding_dim=16, encoder_embedding_dim=16,
        encoder_n_convolution=1, attention_rnn_dim=16, attention_hidden_dim=8,
        attention_location_n_filter=4, decoder_rnn_dim=16, prenet_dim=8,
        postnet_n_convolution=2,
        postnet_embedding_dim=8,
    )  # fmt: skip

    def loss(model: Any, t: Tensor, n: Tensor, mel: Tensor, m: Tensor) -> Tensor:
        before, after, gates, _ = model(t, n, mel, m)
        return F.mse_loss(before, mel) + F.mse_loss(after, mel) + gates.sigmoid().mean()

    return TrainingStep(
        model,
        (
            torch.randint(0, 20, (2, 6)),
            torch.tensor([6, 5]),
            torch.randn(2, 8, 7),
            torch.tensor([7, 6]),
        ),
        forward_fn=loss,
    )


@entry("speechbrain", "speechbrain.lobes.models.ECAPA_TDNN")
def ecapa_and_additive_margin() -> TrainingStep:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
    from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper

    model = nn.ModuleDict(
        {
            "body": ECAPA_TDNN(
                8,
                channels=[16] * 5,
                lin_neurons=16,
                attention_channels=8,
                res2net_scale=4,
                se_channels=8,
                kernel_sizes=[5, 3, 3, 3, 1],
                dilations=[1, 2, 3, 4, 1],
                groups=[1] * 5,
            ),
            "head": Classifier(16, out_neurons=10),
        }
    )
    criterion = LogSoftmaxWrapper(AdditiveAngularMargin(0.2, 30))
    return TrainingStep(
        model,
        (torch.randn(4, 20, 8), classes(4).unsqueeze(1)),
        forward_fn=lambda m, x, y: criterion(m["head"](m["body"](x)), y),
    )


@entry("speechbrain", "speechbrain.lobes.models.transformer.TransformerASR")
def transformer_for_speech() -> TrainingStep:
    from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR

    model = TransformerASR(
        tgt_vocab=20, input_size=8, d_model=16, nhead=2, num_encoder_layers=1,
        num_decoder_layers=1, d_ffn=32, encoder_module="conformer", causal=False,
        attention_type="RelPosMHAXL", normalize_before=True,
    )  # fmt: skip

    def loss(model: Any, x: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        a, b = model(x, words, lengths)
        return a.square().mean() + b.square().mean()

    return TrainingStep(
        model,
        (torch.randn(2, 12, 8), torch.randint(1, 20, (2, 5)), torch.tensor([1.0, 0.7])),
        forward_fn=loss,
    )


@entry("speechbrain", "speechbrain.lobes.models.CRDNN")
def crdnn() -> TrainingStep:
    from speechbrain.lobes.models.CRDNN import CRDNN

    model = CRDNN(
        input_shape=[None, None, 8], cnn_blocks=1, cnn_channels=(8,), rnn_layers=1,
        rnn_neurons=8, dnn_blocks=1, dnn_neurons=8, time_pooling=True,
    )  # fmt: skip
    return TrainingStep(model, (torch.randn(2, 12, 8),))


@entry("asteroid", "asteroid.models")
def dual_path_rnn_and_permutations() -> TrainingStep:
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
    from asteroid.models import DPRNNTasNet

    model = DPRNNTasNet(
        2,
        n_filters=16,
        kernel_size=4,
        stride=2,
        bn_chan=8,
        hid_size=8,
        chunk_size=8,
        n_repeats=1,
    )
    criterion = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    return TrainingStep(
        model,
        (torch.randn(2, 1, 64), torch.randn(2, 2, 64)),
        forward_fn=lambda m, x, y: criterion(m(x), y),
    )


@entry("encodec", "encodec.modules")
def seanet_autoencoder() -> TrainingStep:
    from encodec.modules import SEANetDecoder, SEANetEncoder

    options = {
        "dimension": 8,
        "n_filters": 4,
        "n_residual_layers": 1,
        "ratios": [4, 2],
        "lstm": 1,
    }
    model = nn.Sequential(SEANetEncoder(**options), SEANetDecoder(**options))
    return TrainingStep(model, (torch.randn(2, 1, 64),))


@entry("conformer")
def conformer_block() -> TrainingStep:
    from conformer import Conformer

    return TrainingStep(
        Conformer(
            dim=16,
            depth=2,
            dim_head=8,
            heads=2,
            conv_kernel_size=7,
            attn_dropout=0.1,
            ff_dropout=0.1,
            conv_dropout=0.1,
        ),
        (torch.randn(2, 12, 16),),
    )


# --- Tables, time series, spikes, control ---


@entry("tab-transformer-pytorch")
def ft_transformer() -> TrainingStep:
    from tab_transformer_pytorch import FTTransformer

    model = FTTransformer(
        categories=(5, 4),
        num_continuous=3,
        dim=16,
        depth=2,
        heads=2,
        attn_dropout=0.1,
        ff_dropout=0.1,
    )
    return TrainingStep(model, (torch.randint(0, 4, (4, 2)), torch.randn(4, 3)))


@entry("pytorch-tabnet", "pytorch_tabnet.tab_network")
def tabnet() -> TrainingStep:
    from pytorch_tabnet.tab_network import TabNet

    model = TabNet(
        8, 3, n_d=8, n_a=8, n_steps=3, virtual_batch_size=4, group_attention_matrix=torch.eye(8)
    )

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out, sparse = model(x)
        return F.cross_entropy(out, y) - 1e-3 * sparse

    return TrainingStep(model, (torch.randn(8, 8), classes(8, 3)), forward_fn=loss)


@entry("pytorch-widedeep", "pytorch_widedeep.models")
def saint_of_columns() -> TrainingStep:
    from pytorch_widedeep.models import SAINT, WideDeep

    columns = {"a": 0, "b": 1, "c": 2}
    model = WideDeep(
        deeptabular=SAINT(
            column_idx=columns, cat_embed_input=[("a", 5), ("b", 5)], continuous_cols=["c"],
            input_dim=8, n_heads=2, n_blocks=1,
        )
    )  # fmt: skip
    return TrainingStep(model, ({"deeptabular": torch.randint(0, 4, (4, 3)).float()},))


def _forecast(make: Callable[[], tuple[nn.Module, Any]]) -> TrainingStep:
    model, (x, y) = make()

    def loss(model: Any, x: Any, y: Any) -> Tensor:
        return model.loss(model(x)["prediction"], y)

    return TrainingStep(model, (x, y), forward_fn=loss)


def _series(kind: str, **options: Any) -> tuple[nn.Module, Any]:
    import numpy
    import pandas
    import pytorch_forecasting as forecasting

    frame = pandas.DataFrame(
        {
            "time": numpy.tile(numpy.arange(24), 3),
            "group": numpy.repeat(["a", "b", "c"], 24),
            "value": numpy.sin(numpy.arange(72.0)),
        }
    )
    data = forecasting.TimeSeriesDataSet(
        frame, "time", "value", ["group"], max_encoder_length=8, max_prediction_length=4,
        time_varying_unknown_reals=["value"], time_varying_known_reals=options.pop("known", []),
        target_normalizer=forecasting.data.EncoderNormalizer(),
        static_categoricals=options.pop("static", []),
    )  # fmt: skip
    if kind in ("NBeats", "NHiTS"):
        options["loss"] = forecasting.metrics.SMAPE()
    model = getattr(forecasting, kind).from_dataset(data, **options)
    return model, next(iter(data.to_dataloader(train=False, batch_size=4, num_workers=0)))


for _name, _options in {
    "NBeats": {"widths": [16, 16], "num_blocks": [1, 1], "num_block_layers": [1, 1]},
    "NHiTS": {"hidden_size": 16},
    "TemporalFusionTransformer": {
        "hidden_size": 8, "attention_head_size": 2, "hidden_continuous_size": 4,
        "known": ["time"], "static": ["group"],
    },
    "DeepAR": {"hidden_size": 8, "rnn_layers": 2},
}.items():  # fmt: skip
    add(
        "pytorch-forecasting",
        _name,
        lambda name=_name, options=_options: _forecast(lambda: _series(name, **options)),
    )


@entry("snntorch")
def leaky_neurons_over_time() -> TrainingStep:
    import snntorch
    from snntorch import surrogate

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
            spike = surrogate.fast_sigmoid()
            self.first = snntorch.Leaky(0.9, spike_grad=spike, learn_beta=True)
            self.second = snntorch.Leaky(0.9, spike_grad=spike)

        def forward(self, x: Tensor) -> Tensor:
            one, two = self.first.init_leaky(), self.second.init_leaky()
            total = torch.zeros((), device=x.device)
            for _ in range(4):
                s, one = self.first(self.a(x), one)
                s, two = self.second(self.b(s), two)
                total = total + two.square().mean() + s.mean()
            return total

    return TrainingStep(Net(), (torch.randn(4, 8),), loss_fn=own)


@entry("spikingjelly", "spikingjelly.activation_based")
def spiking_convolutions() -> TrainingStep:
    from spikingjelly.activation_based import functional, layer, neuron

    model = nn.Sequential(
        layer.Conv2d(1, 4, 3, padding=1), layer.BatchNorm2d(4), neuron.IFNode(),
        layer.MaxPool2d(2), layer.Flatten(), layer.Linear(64, 4), neuron.LIFNode(),
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        functional.reset_net(model)
        return (
            sum((model(x) for _ in range(3)), torch.zeros((), device=x.device)).square().mean()
        )

    return TrainingStep(model, (torch.rand(2, 1, 8, 8),), forward_fn=loss)


@entry("stable-baselines3")
def ppo_update() -> TrainingStep:
    import gymnasium
    from stable_baselines3.common.policies import ActorCriticPolicy

    box = gymnasium.spaces.Box(-1, 1, (4,))
    model = ActorCriticPolicy(box, gymnasium.spaces.Discrete(3), lambda _: 1e-3)

    def loss(model: Any, x: Tensor, actions: Tensor, old: Tensor, gain: Tensor) -> Tensor:
        values, log_prob, entropy = model.evaluate_actions(x, actions)
        ratio = torch.exp(log_prob - old)
        gained = torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
        return -gained + 0.5 * F.mse_loss(values.flatten(), gain) - 0.01 * entropy.mean()

    return TrainingStep(
        model,
        (torch.rand(8, 4), torch.arange(8) % 3, torch.full((8,), -1.1), torch.randn(8)),
        forward_fn=loss,
    )


@entry("stable-baselines3")
def continuous_actor() -> TrainingStep:
    import gymnasium
    from stable_baselines3.sac.policies import SACPolicy

    box = gymnasium.spaces.Box(-1, 1, (4,))
    model = SACPolicy(box, gymnasium.spaces.Box(-1, 1, (2,)), lambda _: 1e-3, net_arch=[16, 16])

    def loss(model: Any, x: Tensor) -> Tensor:
        actions, log_prob = model.actor.action_log_prob(x)
        values = torch.cat(model.critic(x, actions), dim=1)
        return (0.1 * log_prob.unsqueeze(1) - values.min(1, keepdim=True).values).mean()

    return TrainingStep(model, (torch.rand(8, 4),), forward_fn=loss)


@entry("torchrl", "torchrl.objectives", "torchrl.modules")
def clipped_ppo_loss() -> TrainingStep:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import (
        NormalParamExtractor,
        ProbabilisticActor,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives import ClipPPOLoss

    body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True,
    )  # fmt: skip
    critic = ValueOperator(
        nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), in_keys=["observation"]
    )
    model = ClipPPOLoss(actor, critic)
    names = (
        model.tensor_keys.sample_log_prob,
        model.tensor_keys.advantage,
        model.tensor_keys.value_target,
    )

    def loss(
        model: Any, observation: Tensor, action: Tensor, old: Tensor, gain: Tensor
    ) -> Tensor:
        data = dict(zip(names, (old, gain, gain))) | {
            "observation": observation,
            "action": action,
        }
        out = model(TensorDict(data, batch_size=[8]))
        return out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]

    return TrainingStep(
        model,
        (torch.rand(8, 4), torch.rand(8, 2) * 0.9, torch.full((8,), -1.0), torch.randn(8, 1)),
        forward_fn=loss,
    )


@entry("torchopt")
def maml() -> TrainingStep:
    import torchopt

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        inner = torchopt.MetaSGD(model, lr=0.1)
        state = torchopt.extract_state_dict(model, by="reference")
        inner.step(F.mse_loss(model(x), y))
        value = F.mse_loss(model(x), y)
        torchopt.recover_state_dict(model, state)
        return value

    return TrainingStep(model, (torch.randn(8, 4), torch.randn(8, 1)), forward_fn=loss)


@entry("higher")
def unrolled_inner_loop() -> TrainingStep:
    import higher

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, steps):
            steps.step(F.mse_loss(fast(x), y))
            return F.mse_loss(fast(x), y)

    return TrainingStep(model, (torch.randn(8, 4), torch.randn(8, 1)), forward_fn=loss)


def _clicks(kind: str) -> TrainingStep:
    from deepctr_torch import models
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    columns = [SparseFeat("user", 10, 4), SparseFeat("item", 10, 4), DenseFeat("age", 1)]
    model = getattr(models, kind)(columns, columns, dnn_hidden_units=(16, 16), device="cpu")
    rows = torch.cat([torch.randint(0, 10, (8, 2)).float(), torch.rand(8, 1)], 1)
    return TrainingStep(
        model,
        (rows, torch.ones(8, 1)),
        forward_fn=lambda m, x, y: F.binary_cross_entropy(m(x), y),
    )


for _name in ("DeepFM", "xDeepFM", "AutoInt", "DCN"):
    add("deepctr-torch", _name, lambda name=_name: _clicks(name), "deepctr_torch.models")


@entry("ema-pytorch")
def moving_average_of_a_model() -> TrainingStep:
    from ema_pytorch import EMA

    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    model = EMA(net, beta=0.9, update_after_step=0, update_every=1, include_online_model=True)

    def update(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()
        model.update()

    def loss(model: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            average = model(x)
        return F.mse_loss(model.online_model(x), average + 1)

    return TrainingStep(model, (torch.randn(4, 8),), forward_fn=loss, step_fn=update)
