"""Object detection: Faster-RCNN on PASCAL VOC."""
