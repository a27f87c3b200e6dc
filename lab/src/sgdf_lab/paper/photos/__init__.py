"""Photographs sorted into classes: ImageNet from scratch, and fine-tuning of ViT."""
