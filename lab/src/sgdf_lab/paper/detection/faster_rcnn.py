"""Faster-RCNN of torchvision, as in the paper's detection table, and a tiny one for the CPU."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.models.detection import FasterRCNN, FasterRCNN_ResNet50_FPN_Weights
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN, resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from sgdf_lab.models import vision

COCO = FasterRCNN_ResNet50_FPN_Weights.COCO_V1
PREDICTOR = "roi_heads.box_predictor."  # prefix of the parameters of the last layers


def build_detector(name: str, *, classes: int, file: Path | None) -> FasterRCNN:
    """The named network for `classes` classes and the background.

    Without a weights file the weights come from torch's global RNG. As in torchvision, batch norms
    are then trained; with a file they are frozen, and so are the first layers of ResNet50.
    """
    model = MODELS[name](file is not None)
    if file is not None:
        vision.load_but(PREDICTOR, model, vision.read_weights(file), file)
    features = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(features, classes + 1)
    return model


def fasterrcnn(frozen: bool) -> FasterRCNN:
    norm = FrozenBatchNorm2d if frozen else nn.BatchNorm2d
    backbone = resnet_fpn_backbone(
        backbone_name="resnet50",
        weights=None,
        norm_layer=norm,
        trainable_layers=3 if frozen else 5,
    )
    model = FasterRCNN(backbone, num_classes=2)
    for module in model.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.eps = 0.0  # the statistics of the COCO weights were frozen without it
    return model


def fasterrcnn_tiny(frozen: bool) -> FasterRCNN:
    """The same parts, smaller: images of about 64 pixels, three levels of features."""
    norm = FrozenBatchNorm2d if frozen else nn.BatchNorm2d
    widths = (8, 16, 32)
    stages: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, width) in enumerate(zip((3, *widths), widths, strict=False)):
        stride = 4 if i == 0 else 2
        convolution = nn.Conv2d(before, width, 2 * stride - 1, stride, stride - 1, bias=False)
        stages[f"stage{i}"] = nn.Sequential(convolution, norm(width), nn.ReLU())
    levels = {"stage1": "0", "stage2": "1"}
    backbone = BackboneWithFPN(nn.Sequential(stages), levels, list(widths[1:]), out_channels=16)
    return FasterRCNN(
        backbone,
        min_size=64,
        max_size=96,
        rpn_anchor_generator=AnchorGenerator(((12,), (24,), (48,)), ((0.5, 1.0, 2.0),) * 3),
        rpn_post_nms_top_n_train=100,
        rpn_post_nms_top_n_test=50,
        rpn_batch_size_per_image=64,
        box_roi_pool=MultiScaleRoIAlign(["0", "1"], output_size=4, sampling_ratio=2),
        box_head=TwoMLPHead(16 * 4 * 4, 64),
        box_predictor=FastRCNNPredictor(64, 2),
        box_batch_size_per_image=64,
    )


MODELS = {"fasterrcnn": fasterrcnn, "fasterrcnn-tiny": fasterrcnn_tiny}


def weights_file(name: str, choice: Any) -> Path | None:
    return vision.find_weights(name, choice, COCO.url if name == "fasterrcnn" else None)
