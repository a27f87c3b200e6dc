"""Object detection: Faster-RCNN on PASCAL VOC."""

from sgdf.lab.tasks.registry import Metric, paper_task

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
        },
    ),
)
