"""Object detection: Faster-RCNN on PASCAL VOC."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgdf_lab.data import fingerprints, voc
from sgdf_lab.tasks.registry import Metric, paper_task


def identify(options: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """With class names of their own, the images are a user's: a run knows both."""
    names = options.get("names")
    if isinstance(names, str):
        names = list(voc.read_class_names(Path(names)))
    if not isinstance(names, list):
        return {}
    return {"names": names, "fingerprint": fingerprints.fingerprint(voc.named_files(folder))}


TASKS = (
    paper_task(
        "voc",
        "fasterrcnn",
        trainer=f"{__name__}.detector",
        models=("fasterrcnn", "fasterrcnn-tiny"),
        metrics=(
            Metric("test_ap50", "mAP at IoU 0.5"),
            Metric("test_ap", "mAP at IoU 0.5 to 0.95"),
            Metric("test_voc_ap", "mAP by the rule of VOC 2007"),
        ),
        options={
            "weights": "pretrained",  # or random, or a file
            "lists": "official",  # of images; or any
            "names": None,  # a file with class names, for other images in the layout of VOC
            "fingerprint": "",  # of these
        },
        identify=identify,
    ),
)
