"""Training steps of packages for pictures: losses, geometry, views of one picture."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, classes, entry, images


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
            return kornia.losses.ssim_loss(
                self.body(kornia.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0))), x, 5
            )

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
            transform = kornia.geometry.get_perspective_transform(corners, corners + shift)
            return F.l1_loss(kornia.geometry.warp_perspective(a, transform, (32, 32)), b)

    return TrainingStep(Net(), (images(2, 32), images(2, 32)), loss_fn=lambda loss: loss)


@entry("lpips")
def perceptual_loss_of_a_decoder() -> TrainingStep:
    import lpips

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
    )
    judge = lpips.LPIPS(net="squeeze", pretrained=False, pnet_rand=True, verbose=False)
    both = nn.ModuleDict({"decoder": model, "judge": judge})

    def loss(both: Any, x: Tensor) -> Tensor:
        return both["judge"](both["decoder"](x), x).mean()

    return TrainingStep(both, (images(2, 64),), forward_fn=loss)


@entry("pytorch-msssim")
def ms_ssim_of_a_decoder() -> TrainingStep:
    from pytorch_msssim import MS_SSIM

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
    )
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

    def pair_loss(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return criterion(model(a), model(b))

    return TrainingStep(body, (images(4, 32), images(4, 32)), forward_fn=pair_loss)


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
            self.head = DINOProjectionHead(
                16, 32, 16, 24, batch_norm=False, freeze_last_layer=-1
            )

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
            targets = [both["teacher"](a), both["teacher"](b)]
        predictions = [both["student"](a), both["student"](b)]
        return both["criterion"](targets, predictions, epoch=1)

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
