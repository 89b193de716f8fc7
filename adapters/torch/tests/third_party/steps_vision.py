"""Training steps of packages for vision: networks and their losses."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, classes, classifying, entry, images


def _smp(kind: str) -> TrainingStep:
    import segmentation_models_pytorch as smp

    model = getattr(smp, kind)(encoder_name="mobilenet_v2", encoder_weights=None, classes=3)
    dice = smp.losses.DiceLoss("multiclass")
    labels = torch.randint(0, 3, (2, 64, 64))
    return TrainingStep(
        model, (images(), labels), forward_fn=lambda model, x, y: dice(model(x), y)
    )


for _name in ("Unet", "UnetPlusPlus", "FPN", "DeepLabV3Plus", "Segformer"):
    add(
        "segmentation-models-pytorch",
        f"{_name} and dice loss",
        lambda name=_name: _smp(name),
    )


@entry("open-clip-torch", "open_clip")
def clip() -> TrainingStep:
    from open_clip import ClipLoss
    from open_clip.model import CLIP

    model = CLIP(
        32,
        {"layers": 2, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 32},
        {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2},
    )
    return TrainingStep(
        model,
        (images(4, 32), torch.randint(1, 64, (4, 16))),
        forward_fn=lambda model, x, t: ClipLoss()(*model(x, t)[:3]),
    )


@entry("open-clip-torch", "open_clip")
def coca() -> TrainingStep:
    from open_clip.coca_model import CoCa
    from open_clip.loss import CoCaLoss

    text = {
        "context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2,
        "embed_cls": True, "output_tokens": True,
    }  # fmt: skip
    vision = {
        "layers": 2, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 32,
        "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True,
    }  # fmt: skip
    decoder = {
        "context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2
    }  # fmt: skip
    model = CoCa(32, decoder, text, vision)
    for weight in model.parameters():  # The package leaves some as memory has them.
        nn.init.normal_(weight, std=0.1)
    loss = CoCaLoss(caption_loss_weight=2.0, clip_loss_weight=1.0)

    def forward_loss(model: nn.Module, x: Tensor, tokens: Tensor) -> Tensor:
        out = model(x, tokens)
        names = ("image_features", "text_features", "logits", "labels", "logit_scale")
        losses = loss(*(out[name] for name in names))
        return losses[0] + losses[1]

    return TrainingStep(
        model, (images(4, 32), torch.randint(1, 64, (4, 16))), forward_fn=forward_loss
    )


def _yolo(file: str, labels: Callable[[], dict[str, Tensor]]) -> TrainingStep:
    from ultralytics.cfg import get_cfg
    from ultralytics.nn import tasks

    kind = {"seg": "SegmentationModel", "pose": "PoseModel", "cls": "ClassificationModel"}
    task = file.removesuffix(".yaml").rpartition("-")[2] if "-" in file else ""
    model = getattr(tasks, kind.get(task, "DetectionModel"))(file, verbose=False)
    model.args = get_cfg()
    batch = {"img": images(2, 64)} | labels()
    return TrainingStep(model, (batch,), forward_fn=lambda model, batch: model(batch)[0].sum())


def _yolo_boxes() -> dict[str, Tensor]:
    return {
        "batch_idx": torch.tensor([0.0, 0.0, 1.0]),
        "cls": torch.tensor([[1.0], [2.0], [0.0]]),
        "bboxes": torch.tensor(
            [[0.5, 0.5, 0.4, 0.3], [0.3, 0.3, 0.2, 0.2], [0.6, 0.4, 0.5, 0.5]]
        ),
    }


for _name in ("yolov8n", "yolo11n", "yolov10n"):
    add(
        "ultralytics",
        _name,
        lambda name=_name: _yolo(f"{name}.yaml", _yolo_boxes),
        "ultralytics.nn.tasks",
    )
add(
    "ultralytics",
    "yolo11n-cls",
    lambda: _yolo("yolo11n-cls.yaml", lambda: {"cls": classes()}),
    "ultralytics.nn.tasks",
)


@entry("monai")
def unet_and_dice_loss() -> TrainingStep:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    model = UNet(2, 1, 3, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
    dice = DiceCELoss(to_onehot_y=True, softmax=True)
    labels = torch.randint(0, 3, (2, 1, 32, 32))
    return TrainingStep(
        model,
        (torch.rand(2, 1, 32, 32), labels),
        forward_fn=lambda model, x, y: dice(model(x), y),
    )


def _monai(make: Callable[[Any], nn.Module], *shape: int) -> TrainingStep:
    from monai.networks import nets

    return TrainingStep(make(nets), (torch.rand(shape),))


@entry("monai")
def swin_unetr() -> TrainingStep:
    return _monai(
        lambda n: n.SwinUNETR(1, 2, feature_size=12, spatial_dims=2, depths=(1, 1, 1, 1)),
        1, 1, 64, 64,
    )  # fmt: skip


@entry("monai")
def segresnet_of_volumes() -> TrainingStep:
    return _monai(lambda n: n.SegResNet(3, 8, 1, 2), 1, 1, 16, 16, 16)


@entry("monai")
def unetr() -> TrainingStep:
    return _monai(lambda n: n.UNETR(1, 2, (32, 32), 4, 32, 64, 2, spatial_dims=2), 1, 1, 32, 32)


@entry("monai")
def dynunet_with_deep_supervision() -> TrainingStep:
    def make(nets: Any) -> nn.Module:
        sizes = [3, 3, 3, 3]
        return nets.DynUNet(
            2, 1, 2, sizes, [1, 2, 2, 2], [2, 2, 2], filters=[8, 16, 16, 16],
            deep_supervision=True, deep_supr_num=1,
        )  # fmt: skip

    return _monai(make, 2, 1, 32, 32)


@entry("monai")
def autoencoder_kl() -> TrainingStep:
    from monai.networks.nets import AutoencoderKL

    model = AutoencoderKL(
        2, 1, 1, (1, 1), (16, 16), (False, False), 4, norm_num_groups=8,
        with_encoder_nonlocal_attn=False, with_decoder_nonlocal_attn=False,
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        back, mean, sigma = model(x)
        kl = 0.5 * (mean**2 + sigma**2 - torch.log(sigma**2) - 1).mean()
        return F.l1_loss(back, x) + 1e-3 * kl

    return TrainingStep(model, (torch.rand(2, 1, 16, 16),), forward_fn=loss)


@entry("monai")
def discriminator_and_gradient_penalty() -> TrainingStep:
    from monai.networks.nets import PatchDiscriminator

    model = PatchDiscriminator(2, 8, 1, num_layers_d=2)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        out = model(x)[-1]
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.softplus(-out).mean() + grad.square().sum((1, 2, 3)).mean()

    return TrainingStep(model, (torch.rand(2, 1, 32, 32),), forward_fn=loss)


def _vit_pytorch(make: Callable[[Any], nn.Module], size: int = 32) -> TrainingStep:
    import vit_pytorch

    return classifying(make(vit_pytorch), images(2, size))


_VIT = {"num_classes": 10, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}


@entry("vit-pytorch")
def simple_vit() -> TrainingStep:
    return _vit_pytorch(lambda v: v.SimpleViT(image_size=32, patch_size=8, **_VIT))


@entry("vit-pytorch", "vit_pytorch.dino")
def dino() -> TrainingStep:
    from vit_pytorch import ViT
    from vit_pytorch.dino import Dino

    vit = ViT(image_size=32, patch_size=8, **_VIT)
    model = Dino(
        vit, image_size=32, hidden_layer="to_latent", projection_hidden_size=32,
        projection_layers=2, num_classes_K=64,
    )  # fmt: skip

    def update(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()
        model.update_moving_average()

    return TrainingStep(model, (images(2, 32),), loss_fn=lambda loss: loss, step_fn=update)


@entry("vit-pytorch", "vit_pytorch.cct")
def compact_transformer() -> TrainingStep:
    from vit_pytorch.cct import CCT

    model = CCT(
        img_size=32, embedding_dim=32, n_conv_layers=1, num_layers=2, num_heads=2,
        mlp_ratio=2.0, num_classes=10, kernel_size=3, stride=1, padding=1,
    )  # fmt: skip
    return classifying(model, images(2, 32))


@entry("vit-pytorch", "vit_pytorch.max_vit")
def max_vit() -> TrainingStep:
    from vit_pytorch.max_vit import MaxViT

    model = MaxViT(
        num_classes=10, dim_conv_stem=16, dim=16, dim_head=8, depth=(1, 1), window_size=4
    )
    return classifying(model, images(2, 64))


@entry("vit-pytorch", "vit_pytorch.vivit")
def vivit() -> TrainingStep:
    from vit_pytorch.vivit import ViViT

    model = ViViT(
        image_size=32, image_patch_size=8, frames=4, frame_patch_size=2, num_classes=10,
        dim=32, spatial_depth=1, temporal_depth=1, heads=2, mlp_dim=64,
    )  # fmt: skip
    return classifying(model, torch.rand(2, 3, 4, 32, 32))


@entry("byol-pytorch")
def byol_of_resnet() -> TrainingStep:
    from byol_pytorch import BYOL
    from timm import create_model

    model = BYOL(
        create_model("test_resnet", num_classes=10), image_size=32, hidden_layer="global_pool",
        projection_size=16, projection_hidden_size=32,
    )  # fmt: skip

    def update(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()
        model.update_moving_average()

    return TrainingStep(model, (images(2, 32),), loss_fn=lambda loss: loss, step_fn=update)


@entry("efficientnet-pytorch")
def efficientnet_b0() -> TrainingStep:
    from efficientnet_pytorch import EfficientNet

    return classifying(EfficientNet.from_name("efficientnet-b0"), images())


@entry("segment-anything", "segment_anything.modeling")
def sam_of_prompts() -> TrainingStep:
    from segment_anything import modeling

    encoder = modeling.ImageEncoderViT(
        img_size=64, patch_size=16, embed_dim=32, depth=2, num_heads=2, out_chans=32,
        use_rel_pos=True, window_size=2, global_attn_indexes=(1,),
    )  # fmt: skip
    prompts = modeling.PromptEncoder(32, (4, 4), (64, 64), 16)
    transformer = modeling.TwoWayTransformer(2, 32, 2, 64)
    decoder = modeling.MaskDecoder(transformer_dim=32, transformer=transformer)
    model = nn.ModuleDict({"encoder": encoder, "prompts": prompts, "decoder": decoder})

    def loss(model: Any, x: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        sparse, dense = model["prompts"](points=(points, labels), boxes=None, masks=None)
        masks, quality = model["decoder"](
            image_embeddings=model["encoder"](x),
            image_pe=model["prompts"].get_dense_pe(),
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=True,
        )
        return masks.sigmoid().mean() + quality.mean()

    return TrainingStep(
        model,
        (images(1, 64), torch.rand(1, 2, 2) * 64, torch.tensor([[1, 0]])),
        forward_fn=loss,
    )
