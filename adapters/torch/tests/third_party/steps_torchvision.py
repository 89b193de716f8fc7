"""Training steps of torchvision, with detection and segmentation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, classes, classifying, entry, images


def _torchvision(name: str, size: int = 64, **options: Any) -> TrainingStep:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=10, **options)
    return classifying(model, images(2, size))


def _with_aux(name: str, size: int) -> TrainingStep:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=10, init_weights=False)

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
    from torchvision.models.swin_transformer import (
        SwinTransformer,
        SwinTransformerBlockV2,
    )

    model = SwinTransformer(
        [4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10, block=SwinTransformerBlockV2
    )
    return classifying(model, images())


def _maxvit() -> TrainingStep:
    from torchvision.models import MaxVit

    model = MaxVit(
        (64, 64), 16, 4, [16, 32], [1, 1], 8, stochastic_depth_prob=0.2, num_classes=10
    )
    return classifying(model, images())


def _boxes(masks: bool = False, keypoints: bool = False) -> list[dict[str, Tensor]]:
    targets = []
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
        targets.append(target)
    return targets


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
    return _detector(lambda d: d.fasterrcnn_mobilenet_v3_large_320_fpn(num_classes=3, **_SMALL))


@entry("torchvision")
def mask_rcnn() -> TrainingStep:
    def make(d: Any) -> nn.Module:
        from torchvision.models.detection import mask_rcnn as parts

        return d.MaskRCNN(
            _backbone(), min_size=64, max_size=64, mask_roi_pool=_rois(14),
            mask_head=parts.MaskRCNNHeads(32, (32,), 1),
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
    return _detector(
        lambda d: d.RetinaNet(
            _backbone(), 3, anchor_generator=_anchors(d), min_size=64, max_size=64
        )
    )


def _anchors(detection: Any, *ratios: float) -> Any:
    sizes = tuple((size,) for size in (8, 16, 32, 64))
    return detection.anchor_utils.AnchorGenerator(sizes, (ratios or (0.5, 1.0, 2.0),) * 4)


@entry("torchvision")
def fcos() -> TrainingStep:
    return _detector(
        lambda d: d.FCOS(
            _backbone(), 3, anchor_generator=_anchors(d, 1.0), min_size=64, max_size=64
        )
    )


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
