"""Object detection: Faster-RCNN on PASCAL VOC."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgdf_lab.data import fingerprints, voc


def identify(options: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """With class names of their own, the images are a user's: a run knows both."""
    names = options.get("names")
    if isinstance(names, str):
        names = list(voc.read_class_names(Path(names)))
    if not isinstance(names, list):
        return {}
    return {"names": names, "fingerprint": fingerprints.fingerprint(voc.named_files(folder))}
