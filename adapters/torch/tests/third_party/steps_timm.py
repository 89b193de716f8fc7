"""Training steps of models of timm."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, classes, classifying, entry, images

# Indexed by the name of the entry: the options that the model is made with.
_TIMM: dict[str, dict[str, Any]] = {
    "resnet with drop path and drop block": {
        "name": "test_resnet", "drop_path_rate": 0.2, "drop_block_rate": 0.1
    },
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2)},
    "efficientnet_b0": {},
    "mobilenetv3_small_050": {},
    "ghostnet_050": {},
    "res2net50_14w_8s": {"layers": (1, 1, 1, 1)},
    "convnext_atto": {"depths": (1, 1, 2, 1), "dims": (16, 32, 48, 64)},
    "convnextv2_atto": {"depths": (1, 1, 2, 1), "dims": (16, 32, 48, 64)},
    "hrnet_w18_small": {},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 3, "embed_dim": 48, "num_heads": 3},
    "deit3_small_patch16_224": {
        "img_size": 64, "depth": 3, "embed_dim": 48, "num_heads": 3, "drop_path_rate": 0.3
    },
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2, "embed_dim": 48, "num_heads": 3},
    "beit_base_patch16_224": {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3},
    "cait_xxs24_224": {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3},
    "swin_tiny_patch4_window7_224": {
        "img_size": 56, "depths": (1, 1), "embed_dim": 24, "num_heads": (2, 4)
    },
    "swinv2_tiny_window8_256": {
        "img_size": 64, "depths": (2, 2), "embed_dim": 24, "num_heads": (2, 4)
    },
    "gmlp_ti16_224": {"img_size": 64},
    "poolformer_s12": {},
    "mobilevit_xxs": {},
    "edgenext_xx_small": {},
    "davit_tiny": {"depths": (1, 1), "embed_dims": (24, 48), "num_heads": (2, 4)},
    "fastvit_t8": {},
}  # fmt: skip


def _timm(name: str, options: dict[str, Any]) -> TrainingStep:
    import timm

    options = dict(options)
    size = options.pop("size", options.get("img_size", 64))
    batch = options.pop("batch", 2)
    model = timm.create_model(options.pop("name", name), num_classes=10, **options)
    return classifying(model, images(batch, size))


for _name, _options in _TIMM.items():
    add("timm", _name, lambda name=_name, options=_options: _timm(name, options))


@entry("timm")
def negative_cosine_of_two_views() -> TrainingStep:
    import timm

    model = timm.create_model("test_resnet", num_classes=0)

    def loss(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        first, second = model(a), model(b)
        return -F.cosine_similarity(first, second.detach(), dim=-1).mean()

    return TrainingStep(model, (images(), images()), forward_fn=loss)


@entry("timm")
def mixup_and_soft_targets() -> TrainingStep:
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy

    model = timm.create_model("test_resnet", num_classes=10)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
    soft = SoftTargetCrossEntropy()

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        import numpy

        state = numpy.random.get_state()
        x, target = mixup(x, labels)
        numpy.random.set_state(state)
        return soft(model(x), target)

    return TrainingStep(model, (images(), classes()), forward_fn=loss)
