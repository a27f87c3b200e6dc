"""Parameter groups: with and without weight decay, or hidden matrices and the rest."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from sgdf.optim.settings import is_number, require

#: Modules whose parameters are not decayed, whatever their dimensions.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
CONVOLUTIONS = nn.modules.conv._ConvNd
#: Parts of the names of parameters that are tables, not maps from one layer to the next.
TABLES = ("bias", "embed", "pos", "token")


def param_groups(
    model: nn.Module,
    weight_decay: float | None = None,
    *,
    no_decay: Iterable[str | type[nn.Module]] = (),
    no_matrix: Iterable[str | type[nn.Module]] = (),
    has_head: bool = True,
    named: bool = False,
) -> list[dict[str, Any]]:
    """Parameter groups: hidden matrices and the rest, or with and without weight decay.

    **Without** ``weight_decay``, for `FilterMuon` and `FilterSOAP`: hidden matrices, stacks of them
    (the weights of experts, in one parameter of three dimensions), and everything else: embeddings,
    positions, the output head, norms, biases. The head is the last ``nn.Linear`` of the model. If
    its outputs are made without one, as by ``F.linear`` with the weight of an embedding, that is a
    hidden matrix: say ``has_head=False``. Weights of convolutions are matrices. Each group says
    which kind it is, and the optimizer has a rate and a decay for either kind.

    **With** ``weight_decay``, for any optimizer that has one, torch's too: the parameters that it
    is for, and those without. Decay controls the scale of weight matrices. Left out of it are all
    parameters of norms and embeddings, those named ``bias`` or ``..._bias``, and all of less than
    two dimensions: custom norms, scales, temperatures.

    A parameter that several modules share is in one group, once: an output layer tied to an
    embedding counts as the embedding. Frozen parameters are included, as in
    ``model.parameters()``: without a gradient they have no state and do not move, and unfreezing
    them later needs no change. Group the parameters before a wrapper flattens them (FSDP 1,
    DeepSpeed); FSDP 2, DDP and torch.compile keep their shapes.

    Args:
        model: the module whose parameters are grouped.
        weight_decay: of the first group; the second has 0.
        no_decay: further parameters for the second group. A string is the name of a parameter or
            of a module with all it contains, as ``"head"`` or ``"blocks.*.gate"`` (``*`` also
            matches dots). A class means all modules of it.
        no_matrix: further parameters that are no hidden matrices, in the same way.
        has_head: whether the last ``nn.Linear`` is the output head.
        named: pairs of name and parameter, so that checkpoints have ``param_names``.

    Returns:
        The groups; one that would be empty is left out.

    Examples:
        >>> import sgdf
        >>> model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.LayerNorm(8))
        >>> optimizer = sgdf.FilterAdamW(sgdf.param_groups(model, weight_decay=0.1))
        >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.1), (4, 0.0)]
        >>> model.append(nn.Linear(8, 10))
        Sequential(...)
        >>> [(group["matrices"], len(group["params"])) for group in sgdf.param_groups(model)]
        [(True, 1), (False, 6)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model should be a torch.nn.Module, but got {type(model).__name__}")
    if weight_decay is None:
        if no_decay:
            raise ValueError("no_decay needs a weight_decay")
        return _by_kind(model, _selected(model, no_matrix, "no_matrix"), has_head, named)
    require(is_number(weight_decay) and weight_decay >= 0.0, "weight_decay value", weight_decay)
    if no_matrix or not has_head:
        raise ValueError("no_matrix and has_head are for groups without a weight_decay")
    exempt = _selected(model, no_decay, "no_decay") | {
        p
        for name, module, p in _owned(model)
        if _is_bias(name) or p.ndim < 2 or isinstance(module, (*NORMS, *EMBEDDINGS))
    }
    decayed: list[Any] = []
    others: list[Any] = []
    for name, p in model.named_parameters():
        (others if p in exempt else decayed).append((name, p) if named else p)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _by_kind(
    model: nn.Module, excluded: set[Tensor], has_head: bool, named: bool
) -> list[dict[str, Any]]:
    """Hidden matrices, stacks of them, and the rest, with their places in the model."""
    kinds: dict[Tensor, Any] = {}
    for name, module, p in _owned(model):
        # Of several names the one that is no matrix counts.
        kinds[p] = kinds.get(p, True) and _kind(name, module, p)
    linear = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    for p in (*(linear[-1:] if has_head else ()), *excluded):
        kinds[p] = False
    groups: dict[Any, dict[str, Any]] = {
        kind: {"params": [], "matrices": kind, "order": []} for kind in (True, "stacked", False)
    }
    for place, (name, p) in enumerate(model.named_parameters()):
        groups[kinds[p]]["params"].append((name, p) if named else p)
        groups[kinds[p]]["order"].append(place)
    return [group for group in groups.values() if group["params"]]


def _kind(name: str, module: nn.Module, p: Tensor) -> bool | str:
    """Whether a parameter of this module is a matrix, a stack of matrices, or neither."""
    if p.ndim < 2 or p.is_complex() or p.numel() == 0 or _is_bias(name):
        return False
    if isinstance(module, (*NORMS, *EMBEDDINGS)):
        return False
    if isinstance(module, (nn.Linear, CONVOLUTIONS)):
        return True
    last = name.rpartition(".")[2]
    if any(part in last for part in TABLES) or 1 in p.shape:
        return False
    return True if p.ndim == 2 else "stacked"


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias" or name.endswith("_bias")


def _selected(
    model: nn.Module, entries: str | type[nn.Module] | Iterable[str | type[nn.Module]], option: str
) -> set[Tensor]:
    """The parameters that belong to one of these names or classes."""
    entries = [entries] if isinstance(entries, (str, type)) else list(entries)
    classes = tuple(entry for entry in entries if isinstance(entry, type))
    patterns = [entry for entry in entries if not isinstance(entry, type)]
    unused: set[Any] = set(entries)
    selected = set()
    for name, module, p in _owned(model):
        used: set[Any] = {c for c in classes if isinstance(module, c)}
        used |= {pattern for pattern in patterns if _matches(name, pattern)}
        unused -= used
        if used:
            selected.add(p)
    for entry in entries:
        if entry in unused:
            raise ValueError(f"{option}: no parameter of the model belongs to {entry!r}")
    return selected


def _owned(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Every parameter, once for each module and name that it has."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            yield (f"{prefix}.{name}" if prefix else name), module, p


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern is for this parameter, or for a module that contains it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))
