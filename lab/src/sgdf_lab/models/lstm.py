"""A recurrent language model: an embedding, layers of LSTM, a linear head."""

import torch
from torch import Tensor, nn

from sgdf_lab.registry.models import LstmSize


class LSTM(nn.Module):
    """Logits of the next token at every position of a window, from the tokens up to it.

    The state is zero before the first token of every window.
    """

    def __init__(self, size: LstmSize, vocabulary: int) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(vocabulary, size.embedding)
        widths = (size.embedding, *(size.width for _ in range(size.layers - 1)))
        self.layers = nn.Sequential(*(Layer(inputs, size.width) for inputs in widths))
        self.head = nn.Linear(size.width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


class Layer(nn.Module):
    """The outputs of all steps, N x T x width, from the inputs of all steps.

    Written out instead of torch's `nn.LSTM`: this works under `torch.func.vmap`, in CUDA graphs and
    for second derivatives, and both matrices are weights of `nn.Linear`, so that
    `sgdf.param_groups` finds them. Rows of the matrices: input, forget and output gate, candidate.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(inputs, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)
        with torch.no_grad():
            self.inputs.bias[width : 2 * width] += 1  # at first, gates do not forget
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(len(x), self.width)
        outputs = []
        for step in self.inputs(x).unbind(1):
            parts = step + self.recurrent(hidden)
            gates, candidate = parts.split((3 * self.width, self.width), dim=-1)
            keep_new, keep_old, show = gates.sigmoid().chunk(3, dim=-1)
            cell = keep_old * cell + keep_new * candidate.tanh()
            hidden = show * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)
