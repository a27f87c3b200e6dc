"""Estimates of the Hessian's diagonal, which Sophia asks for every few steps."""

import torch
from torch.nn import functional as F

from sgdf_lab.train.batches import micro_batch_sizes
from sgdf_lab.train.loop import Trainer


class HessianTrainer(Trainer):
    """A trainer whose model predicts classes or tokens, and so can give such estimates."""

    def _labels_in(self, size: int) -> int:
        """The labels of a batch of this size."""
        return size

    def _extra_every(self) -> int:
        optimizer = self._hessian_optimizer()
        return optimizer.hessian_every if optimizer else 0

    def _extra_step(self, size: int) -> None:
        """Give the optimizer the gradient for labels drawn from the model's own output."""
        self.optimizer.zero_grad(set_to_none=True)
        start, share = self.team.share(size)
        position = self.batches.position - size + start
        for count in micro_batch_sizes(share, self.config.accumulate):
            inputs, _ = self.batches.take(position, count)
            with self._autocast():
                logits = self.model(inputs)
            logits = logits.float().flatten(0, -2)
            # The largest of logits plus Gumbel noise is a sample of their softmax.
            noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-20, 1 - 1e-7)))
            labels = (logits.detach() + noise).argmax(1)
            loss = F.cross_entropy(logits, labels, reduction="sum")
            (loss / self._labels_in(size)).backward()
            position = position + count
        self.team.sum_(self._grads())
        optimizer = self._hessian_optimizer()
        assert optimizer
        optimizer.update_hessian(self._labels_in(size))
