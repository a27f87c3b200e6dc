"""Parameter groups: weight decay for weight matrices, none for the rest."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from sgdf.optim.settings import is_number, require

#: Modules whose parameters are not decayed, whatever their dimensions.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def param_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    no_decay: Iterable[str | type[nn.Module]] = (),
    named: bool = False,
) -> list[dict[str, Any]]:
    """Two parameter groups: with weight decay, and without for norms, biases and embeddings.

    Decay controls the scale of weight matrices. Left out of it are all parameters of norms and
    embeddings, those named ``bias`` or ``..._bias``, and all of less than two dimensions: custom
    norms, scales, temperatures. For any optimizer with a ``weight_decay``, torch's too.

    A parameter that several modules share is in one group, once; it is not decayed if it would
    not be in one of them: an output layer tied to an embedding counts as the embedding. Frozen
    parameters are included, as in ``model.parameters()``: without a gradient they have no state
    and do not move, and unfreezing them later needs no change. Group the parameters before a
    wrapper flattens them (FSDP 1, DeepSpeed); FSDP 2, DDP and torch.compile keep their shapes.

    Args:
        model: the module whose parameters are grouped.
        weight_decay: of the first group; the second has 0.
        no_decay: further parameters for the second group. A string is the name of a parameter or
            of a module with all it contains, as ``"head"`` or ``"blocks.*.gate"`` (``*`` also
            matches dots). A class means all modules of it.
        named: pairs of name and parameter, so that checkpoints have ``param_names``.

    Returns:
        The groups, the decayed one first; one that would be empty is left out.

    Examples:
        >>> import sgdf
        >>> model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.LayerNorm(8))
        >>> optimizer = sgdf.SGDF(sgdf.param_groups(model, weight_decay=0.1), lr=0.5)
        >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.1), (4, 0.0)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model should be a torch.nn.Module, but got {type(model).__name__}")
    require(is_number(weight_decay) and weight_decay >= 0.0, "weight_decay value", weight_decay)
    exempt = _exempt(model, [no_decay] if isinstance(no_decay, (str, type)) else list(no_decay))
    decayed: list[Any] = []
    others: list[Any] = []
    for name, p in model.named_parameters():
        (others if p in exempt else decayed).append((name, p) if named else p)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _exempt(model: nn.Module, no_decay: list[str | type[nn.Module]]) -> set[Tensor]:
    """The parameters without decay, by all names that each has."""
    classes = tuple(entry for entry in no_decay if isinstance(entry, type))
    patterns = [entry for entry in no_decay if not isinstance(entry, type)]
    unused: set[Any] = set(no_decay)
    exempt = set()
    for name, module, p in _owned(model):
        used: set[Any] = {c for c in classes if isinstance(module, c)}
        used |= {pattern for pattern in patterns if _matches(name, pattern)}
        unused -= used
        is_bias = name.rpartition(".")[2] == "bias" or name.endswith("_bias")
        if used or is_bias or p.ndim < 2 or isinstance(module, (*NORMS, *EMBEDDINGS)):
            exempt.add(p)
    for entry in no_decay:
        if entry in unused:
            raise ValueError(f"no_decay: no parameter of the model belongs to {entry!r}")
    return exempt


def _owned(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Every parameter, once for each module and name that it has."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            yield (f"{prefix}.{name}" if prefix else name), module, p


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern is for this parameter, or for a module that contains it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))
