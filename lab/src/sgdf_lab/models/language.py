"""Language models: transformers with pre-norm, rotary positions, RMSNorm, GELU and a tied head; and
an LSTM.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgdf_lab.registry.models import GPTS, GptSize, LstmSize
from sgdf_lab.support.errors import unknown

ROTARY_BASE = 10_000.0
INITIAL_STD = 0.02


def build_gpt(name: str, *, vocabulary: int, context: int = 0) -> "GPT":
    """The named network, with weights from torch's global RNG.

    >>> model = build_gpt("gpt-tiny", vocabulary=256)
    >>> model(torch.zeros(2, 64, dtype=torch.int64)).shape
    torch.Size([2, 64, 256])
    """
    if name not in GPTS:
        raise unknown("model", name, GPTS)
    size = GPTS[name]
    return GPT(size._replace(context=context or size.context), vocabulary)


class GPT(nn.Module):
    """Logits of the next token at every position of a window, from the tokens up to it.

    The head shares its weights with the embedding. Linear layers have no bias.
    """

    embedding_is_head = True  # for Muon: the last linear layer is a hidden one

    def __init__(self, size: GptSize, vocabulary: int) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        cosine, sine = rotary_angles(size.context, size.width // size.heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Normal weights; what is added to the residual stream is smaller in a deep network."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            is_added = name.endswith(("attention.out.weight", "mlp.out.weight"))
            depth = 2 * self.size.layers if is_added else 1
            nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cosine, sine = self.get_buffer("cosine")[:length], self.get_buffer("sine")[:length]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return F.linear(self.norm(x), self.embedding.weight)


class Block(nn.Module):
    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.mlp_norm = nn.RMSNorm(size.width)
        self.mlp = Mlp(size.width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        added: Tensor = self.mlp(self.mlp_norm(x))
        return x + added


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, width = x.shape
        # batch x length x 3 x heads x features -> 3 x batch x heads x length x features
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        query, key = (rotated(part, cosine, sine).type_as(value) for part in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 4 * width, bias=False)
        self.out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(F.gelu(self.into(x)))
        return result


def rotary_angles(length: int, features: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, length x features/2, by which the pairs of features are rotated."""
    powers = torch.arange(0, features, 2, dtype=torch.float64) / features
    angles = torch.outer(torch.arange(length, dtype=torch.float64), ROTARY_BASE**-powers)
    return angles.cos().float(), angles.sin().float()


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate features i and i + n/2 by the angle of their position, so that products of queries
    and keys depend on the distance of their positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


# --- LSTM -----------------------------------------------------------------------------------------


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
