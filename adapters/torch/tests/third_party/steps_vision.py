"""Training steps of packages for images and videos."""

from collections.abc import Callable
from typing import Any

import torch
from acplan.training_steps import TrainingStep
from torch import Tensor, nn
from torch.nn import functional as F

from third_party.registry import add, classes, classifying, entry, images

# By name, what the model is made with.
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


# --- torchvision ---


def _torchvision(name: str, size: int = 64, **options: Any) -> TrainingStep:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=10, **options)
    return classifying(model, images(2, size))


def _with_aux(name: str, size: int) -> TrainingStep:
    import torchvision

    model = torchvision.models.get_model(
        name, weights=None, num_classes=10, init_weights=False
    )

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        out = model(x)
        logits = [value for value in out if value is not None]
        return sum(
            (F.cross_entropy(each, labels) for each in logits), torch.zeros((), device=x.device)
        )

    return TrainingStep(model, (images(2, size), classes()), forward_fn=loss)


for _name in (
    "densenet121", "mnasnet0_5", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1",
):  # fmt: skip
    add("torchvision", _name, lambda name=_name: _torchvision(name))
add("torchvision", "swin_v2", lambda: _swin())
add("torchvision", "vit_b_16", lambda: _vit())
add("torchvision", "maxvit", lambda: _maxvit())
add("torchvision", "googlenet with its aux losses", lambda: _with_aux("googlenet", 64))


def _vit() -> TrainingStep:
    from torchvision.models import VisionTransformer

    return classifying(VisionTransformer(64, 16, 3, 4, 48, 96, 0.1, num_classes=10), images())


def _swin() -> TrainingStep:
    from torchvision.models.swin_transformer import SwinTransformer, SwinTransformerBlockV2

    model = SwinTransformer(
        [4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10, block=SwinTransformerBlockV2
    )
    return classifying(model, images())


def _maxvit() -> TrainingStep:
    from torchvision.models import MaxVit

    model = MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, stochastic_depth_prob=0.2, num_classes=10)
    return classifying(model, images())


def _boxes(masks: bool = False, keypoints: bool = False) -> list[dict[str, Tensor]]:
    found = []
    for corner in (4.0, 20.0):
        target = {
            "boxes": torch.tensor(
                [[corner, corner, corner + 30, corner + 36], [2.0, 8.0, 50.0, 40.0]]
            ),
            "labels": torch.tensor([1, 2]),
        }
        if masks:
            mask = torch.zeros(2, 64, 64, dtype=torch.uint8)
            mask[:, 10:40, 10:40] = 1
            target["masks"] = mask
        if keypoints:
            target["labels"] = torch.tensor([1, 1])
            target["keypoints"] = torch.tensor([[[25.0, 25.0, 1.0]] * 17] * 2)
        found.append(target)
    return found


def _detector(make: Callable[[Any], nn.Module], **targets: bool) -> TrainingStep:
    from torchvision.models import detection

    def loss(model: nn.Module, pictures: list[Tensor], targets: Any) -> Tensor:
        losses: dict[str, Tensor] = model(pictures, targets)
        return torch.stack(list(losses.values())).sum()

    return TrainingStep(
        make(detection), (list(images(2, 64)), _boxes(**targets)), forward_fn=loss
    )


_SMALL = {
    "weights": None, "weights_backbone": None, "min_size": 64, "max_size": 64,
}  # fmt: skip


@entry("torchvision")
def faster_rcnn() -> TrainingStep:
    return _detector(
        lambda d: d.fasterrcnn_mobilenet_v3_large_320_fpn(num_classes=3, **_SMALL)
    )


@entry("torchvision")
def mask_rcnn() -> TrainingStep:
    def make(d: Any) -> nn.Module:
        from torchvision.models.detection import mask_rcnn as parts

        return d.MaskRCNN(
            _backbone(), min_size=64, max_size=64, mask_roi_pool=_rois(14), mask_head=parts.MaskRCNNHeads(32, (32,), 1),
            mask_predictor=parts.MaskRCNNPredictor(32, 32, 3), **_box_heads(d, 3),
        )  # fmt: skip

    return _detector(make, masks=True)


@entry("torchvision")
def keypoint_rcnn() -> TrainingStep:
    def make(d: Any) -> nn.Module:
        from torchvision.models.detection import keypoint_rcnn as parts

        return d.KeypointRCNN(
            _backbone(), min_size=64, max_size=64,
            keypoint_roi_pool=_rois(14), keypoint_head=parts.KeypointRCNNHeads(32, (32,)),
            keypoint_predictor=parts.KeypointRCNNPredictor(32, 17), **_box_heads(d, 2),
        )  # fmt: skip

    return _detector(make, keypoints=True)


def _rois(size: int) -> Any:
    from torchvision.ops import MultiScaleRoIAlign

    return MultiScaleRoIAlign(["2", "3", "4"], size, 2)


def _box_heads(detection: Any, count: int) -> dict[str, Any]:
    parts = detection.faster_rcnn
    return {
        "box_head": parts.TwoMLPHead(32 * 49, 64),
        "box_predictor": parts.FastRCNNPredictor(64, count),
        "rpn_post_nms_top_n_train": 50,
        "rpn_anchor_generator": _anchors(detection),
        "box_roi_pool": _rois(7),
    }


@entry("torchvision")
def retinanet() -> TrainingStep:
    return _detector(lambda d: d.RetinaNet(_backbone(), 3, anchor_generator=_anchors(d), min_size=64, max_size=64))


def _anchors(detection: Any, *ratios: float) -> Any:
    sizes = tuple((size,) for size in (8, 16, 32, 64))
    return detection.anchor_utils.AnchorGenerator(sizes, (ratios or (0.5, 1.0, 2.0),) * 4)


@entry("torchvision")
def fcos() -> TrainingStep:
    return _detector(lambda d: d.FCOS(_backbone(), 3, anchor_generator=_anchors(d, 1.0), min_size=64, max_size=64))


@entry("torchvision")
def ssdlite() -> TrainingStep:
    return _detector(
        lambda d: d.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=3
        )
    )


def _backbone() -> nn.Module:
    from torchvision.models import resnet18
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    layers = {f"layer{k}": f"{k}" for k in (2, 3, 4)}
    return BackboneWithFPN(resnet18(), layers, [128, 256, 512], 32)


def _segmenting(name: str) -> TrainingStep:
    import torchvision

    model = torchvision.models.get_model(
        name, weights=None, weights_backbone=None, num_classes=4, aux_loss=True
    )

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        out = model(x)
        return F.cross_entropy(out["out"], labels) + 0.5 * F.cross_entropy(out["aux"], labels)

    labels = torch.randint(0, 4, (2, 64, 64))
    return TrainingStep(model, (images(), labels), forward_fn=loss)


for _name in ("deeplabv3_mobilenet_v3_large",):
    add("torchvision", _name, lambda name=_name: _segmenting(name))


@entry("torchvision")
def raft_optical_flow() -> TrainingStep:
    from torchvision.models.optical_flow import raft_small

    def loss(model: nn.Module, a: Tensor, b: Tensor, flow: Tensor) -> Tensor:
        flows = model(a, b, num_flow_updates=3)
        weights = [0.8 ** (len(flows) - k - 1) for k in range(len(flows))]
        return sum(
            (w * (f - flow).abs().mean() for w, f in zip(weights, flows)),
            torch.zeros((), device=a.device),
        )

    size = (1, 3, 128, 128)
    return TrainingStep(
        raft_small(weights=None),
        (torch.rand(size), torch.rand(size), torch.randn(1, 2, 128, 128)),
        forward_fn=loss,
    )


def _video(name: str) -> TrainingStep:
    from torchvision.models.video import resnet

    model = resnet.VideoResNet(
        resnet.BasicBlock, [getattr(resnet, name)] * 4, [1, 1, 1, 1], resnet.BasicStem, 10
    )
    model.layer4 = nn.Identity()
    model.fc = nn.Linear(256, 10)
    return classifying(model, torch.rand(1, 3, 4, 32, 32))


for _name in ("Conv3DSimple", "Conv2Plus1D"):
    add("torchvision", f"video with {_name}", lambda name=_name: _video(name))


# --- other packages ---


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

    def of(model: nn.Module, x: Tensor, tokens: Tensor) -> Tensor:
        out = model(x, tokens)
        names = ("image_features", "text_features", "logits", "labels", "logit_scale")
        found = loss(*(out[name] for name in names))
        return found[0] + found[1]

    return TrainingStep(model, (images(4, 32), torch.randint(1, 64, (4, 16))), forward_fn=of)


def _yolo(file: str, labels: Callable[[], dict[str, Tensor]]) -> TrainingStep:
    from ultralytics.nn import tasks
    from ultralytics.cfg import get_cfg

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
        "bboxes": torch.tensor([[0.5, 0.5, 0.4, 0.3], [0.3, 0.3, 0.2, 0.2], [0.6, 0.4, 0.5, 0.5]]),
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
    return _monai(
        lambda n: n.UNETR(1, 2, (32, 32), 4, 32, 64, 2, spatial_dims=2), 1, 1, 32, 32
    )


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


@entry("vit-pytorch")
def masked_autoencoder() -> TrainingStep:
    from vit_pytorch import MAE, ViT

    vit = ViT(image_size=32, patch_size=8, **_VIT)
    model = MAE(encoder=vit, masking_ratio=0.75, decoder_dim=32, decoder_depth=1)
    return TrainingStep(model, (images(2, 32),), loss_fn=lambda loss: loss)


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

    return TrainingStep(
        model, (images(2, 32),), loss_fn=lambda loss: loss, step_fn=update
    )


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
    from vit_pytorch.vivit import ViT

    model = ViT(
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


@entry("kornia")
def hardnet_descriptors_and_losses() -> TrainingStep:
    import kornia

    model = kornia.feature.HardNet(pretrained=False)

    def loss(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return F.triplet_margin_loss(model(a), model(b), model(b).roll(1, 0))

    return TrainingStep(
        model, (torch.rand(4, 1, 32, 32), torch.rand(4, 1, 32, 32)), forward_fn=loss
    )


@entry("kornia")
def augmented_vit_and_ssim() -> TrainingStep:
    import kornia

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.augment = kornia.augmentation.AugmentationSequential(
                kornia.augmentation.RandomHorizontalFlip(p=0.5),
                kornia.augmentation.RandomAffine(10.0),
            )
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.augment(x)
            return kornia.losses.ssim_loss(self.body(kornia.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0))), x, 5)

    return TrainingStep(Net(), (images(2, 32),), loss_fn=lambda loss: loss)


@entry("kornia")
def homography_by_warping() -> TrainingStep:
    import kornia

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Linear(8, 8),
            )  # fmt: skip

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            shift = self.body(torch.cat([a, b], 1)).view(-1, 4, 2)
            corners = torch.tensor(
                [[0.0, 0.0], [31.0, 0.0], [31.0, 31.0], [0.0, 31.0]], device=a.device
            ).expand(len(a), 4, 2)
            found = kornia.geometry.get_perspective_transform(corners, corners + shift)
            return F.l1_loss(kornia.geometry.warp_perspective(a, found, (32, 32)), b)

    return TrainingStep(Net(), (images(2, 32), images(2, 32)), loss_fn=lambda loss: loss)


@entry("lpips")
def perceptual_loss_of_a_decoder() -> TrainingStep:
    import lpips

    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    judge = lpips.LPIPS(net="squeeze", pretrained=False, pnet_rand=True, verbose=False)
    both = nn.ModuleDict({"decoder": model, "judge": judge})

    def loss(both: Any, x: Tensor) -> Tensor:
        return both["judge"](both["decoder"](x), x).mean()

    return TrainingStep(both, (images(2, 64),), forward_fn=loss)


@entry("pytorch-msssim")
def ms_ssim_of_a_decoder() -> TrainingStep:
    from pytorch_msssim import MS_SSIM

    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    similar = MS_SSIM(data_range=1.0, win_size=5)
    return TrainingStep(
        model, (images(2, 96),), forward_fn=lambda model, x: 1 - similar(model(x), x)
    )


@entry("compressai", "compressai.models")
def scale_hyperprior() -> TrainingStep:
    from compressai.models import ScaleHyperprior

    model = ScaleHyperprior(8, 12)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out = model(x)
        bits = sum(-torch.log2(v).sum() for v in out["likelihoods"].values())
        return F.mse_loss(out["x_hat"], x) + 1e-4 * bits

    return TrainingStep(model, (images(1, 64),), forward_fn=loss)


@entry("pytorch-wavelets")
def wavelets_in_a_network() -> TrainingStep:
    from pytorch_wavelets import DWTForward, DWTInverse

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.forth = DWTForward(J=2, wave="db2", mode="zero")
            self.low = nn.Conv2d(3, 3, 3, padding=1)
            self.back = DWTInverse(wave="db2", mode="zero")

        def forward(self, x: Tensor) -> Tensor:
            low, high = self.forth(x)
            return self.back((self.low(low), high))

    return TrainingStep(Net(), (images(2, 32),))


def _lightly(loss: Callable[[Any], Any], paired: bool = True) -> TrainingStep:
    import lightly.loss
    import timm

    body = timm.create_model("test_resnet", num_classes=16)
    criterion = loss(lightly.loss)

    def of(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return criterion(model(a), model(b))

    return TrainingStep(body, (images(4, 32), images(4, 32)), forward_fn=of)


for _name, _loss in {
    "SimCLR (NTXentLoss)": lambda m: m.NTXentLoss(),
    "MoCo (NTXentLoss with a bank)": lambda m: m.NTXentLoss(memory_bank_size=(8, 16)),
    "Barlow Twins": lambda m: m.BarlowTwinsLoss(),
    "VICReg": lambda m: m.VICRegLoss(),
    "DCL": lambda m: m.DCLLoss(),
}.items():
    add("lightly", _name, lambda loss=_loss: _lightly(loss), "lightly.loss")


@entry("lightly", "lightly.loss")
def dino_loss_and_momentum_teacher() -> TrainingStep:
    import timm
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = timm.create_model("test_resnet", num_classes=16)
            self.head = DINOProjectionHead(16, 32, 16, 24, batch_norm=False, freeze_last_layer=-1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    student = Student()
    teacher = Student()
    deactivate_requires_grad(teacher)
    both = nn.ModuleDict({"student": student, "teacher": teacher})
    both["criterion"] = DINOLoss(output_dim=24, warmup_teacher_temp_epochs=2)

    def loss(both: Any, a: Tensor, b: Tensor) -> Tensor:
        update_momentum(both["student"], both["teacher"], m=0.9)
        with torch.no_grad():
            told = [both["teacher"](a), both["teacher"](b)]
        said = [both["student"](a), both["student"](b)]
        return both["criterion"](told, said, epoch=1)

    return TrainingStep(both, (images(4, 32), images(4, 32)), forward_fn=loss)


@entry("pytorch-metric-learning", "pytorch_metric_learning.losses")
def triplets_that_are_mined() -> TrainingStep:
    import timm
    from pytorch_metric_learning import losses, miners

    model = timm.create_model("test_resnet", num_classes=16)
    miner, criterion = miners.MultiSimilarityMiner(), losses.TripletMarginLoss()

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        out = model(x)
        return criterion(out, labels, miner(out, labels))

    return TrainingStep(model, (images(6, 32), classes(6, 2)), forward_fn=loss)


@entry("pytorch-metric-learning", "pytorch_metric_learning.losses")
def arcface() -> TrainingStep:
    import timm
    from pytorch_metric_learning import losses

    both = nn.ModuleDict(
        {
            "body": timm.create_model("test_resnet", num_classes=16),
            "loss": losses.ArcFaceLoss(10, 16),
        }
    )
    return TrainingStep(
        both,
        (images(4, 32), classes(4)),
        forward_fn=lambda both, x, y: both["loss"](both["body"](x), y),
    )
