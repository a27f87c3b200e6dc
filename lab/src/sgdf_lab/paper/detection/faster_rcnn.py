"""Faster-RCNN of torchvision, as in the paper's detection table, and a tiny one for the CPU."""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, FasterRCNN_ResNet50_FPN_Weights
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN, resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from sgdf_lab.models import vision
from sgdf_lab.support.errors import UserError

COCO = FasterRCNN_ResNet50_FPN_Weights.COCO_V1
PREDICTOR = "roi_heads.box_predictor."  # prefix of the parameters of the last layers


def build_detector(name: str, *, classes: int, file: Path | None) -> FasterRCNN:
    """The named network for `classes` classes and the background.

    Without a weights file the weights come from torch's global RNG. As in torchvision, batch norms
    are then trained; with a file they are frozen, and so are the first layers of ResNet50.
    """
    model = MODELS[name](file is not None)
    if file is not None:
        load_weights(model, file)
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


# --- weights --------------------------------------------------------------------------------------


def weights_file(name: str, choice: Any) -> Path | None:
    return vision.find_weights(name, choice, COCO.url if name == "fasterrcnn" else None)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load all but the last layers, which are for other classes."""
    own, given = body(model.state_dict()), body(vision.read_weights(path))
    for key in [*own, *given]:
        if key not in given:
            raise UserError(f"{path} does not fit the model: it has no {key}")
        if key not in own:
            raise UserError(f"{path} does not fit the model, which has no {key}")
        if not isinstance(given[key], Tensor) or own[key].shape != given[key].shape:
            shape = list(given[key].shape) if isinstance(given[key], Tensor) else "no tensor"
            raise UserError(
                f"{path} does not fit the model: its {key} is {shape}, not {list(own[key].shape)}"
            )
    model.load_state_dict(given, strict=False)


def body(state: Mapping[str, Any]) -> dict[str, Any]:
    """Without the last layers, and without the step counters of trained batch norms."""
    left_out = (PREDICTOR, "num_batches_tracked")
    return {k: v for k, v in state.items() if not any(word in k for word in left_out)}
