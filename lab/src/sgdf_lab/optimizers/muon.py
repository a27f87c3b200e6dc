"""Matrix steps for the hidden matrices of a network, Adam for everything else, as one optimizer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from sgdf import param_groups
from sgdf_lab.optimizers.build import Group, split_by


class MuonAdamW(Optimizer):
    """torch's Muon and torch's AdamW side by side, each with its own groups of parameters.

    Muon replaces the momentum of a matrix by the nearest orthogonal one (Jordan et al., 2024). It
    is made for the hidden matrices. Embeddings, the head, norms, biases and convolution kernels
    are trained by AdamW, as is common.

    Args:
        params: parameters or groups. A group may say ``use_muon``; of any other group the
            parameters of two dimensions get Muon, the rest AdamW.
        lr: learning rate of Muon, and of AdamW unless `adamw_lr` is given.
        weight_decay: decoupled weight decay of both.
        momentum: decay rate of Muon's moving average.
        nesterov: let Muon look ahead along its average.
        ns_steps: Newton-Schulz iterations that make the update orthogonal.
        adjust_lr_fn: how lr depends on the shape of a matrix. "match_rms_adamw" gives updates the
            size of AdamW's, so that both share a learning rate (Liu et al., 2025,
            arXiv:2502.16982); "original" is Jordan's, with a rate of about 0.02.
        adamw_lr: learning rate of AdamW; a schedule keeps its ratio to lr.
        adamw_betas, adamw_eps: the other settings of AdamW.

    >>> model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 1))
    >>> optimizer = MuonAdamW(hidden_matrices(model.parameters(), model), lr=1e-3)
    >>> [(group["use_muon"], len(group["params"])) for group in optimizer.param_groups]
    [(True, 1), (False, 3)]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        adamw_lr: float | None = None,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
    ) -> None:
        given = split_by("use_muon", params)
        of_muon, of_adamw = ([g for g in given if g["use_muon"] == kind] for kind in (True, False))
        self._parts: dict[bool, Optimizer] = {}  # by use_muon
        if of_muon:
            self._parts[True] = torch.optim.Muon(
                of_muon,
                lr,
                weight_decay,
                momentum,
                nesterov,
                ns_steps=ns_steps,
                adjust_lr_fn=adjust_lr_fn,
            )
        if of_adamw:
            rate = lr if adamw_lr is None else adamw_lr
            self._parts[False] = torch.optim.AdamW(
                of_adamw, rate, adamw_betas, adamw_eps, weight_decay
            )
        groups = [group for part in self._parts.values() for group in part.param_groups]
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for use_muon, part in self._parts.items():
            # Loading a checkpoint replaces groups and state: the parts use what is here.
            part.param_groups = [g for g in self.param_groups if g["use_muon"] == use_muon]
            part.state = self.state
            part.step()
        return loss


def hidden_matrices(params: Iterable[Any], model: nn.Module | None) -> list[Group]:
    """Two groups: the matrices between a network's embeddings and its head; all the rest.

    The head is the last `nn.Linear` of the model, unless the model says that `embedding_is_head`.
    Without a model, all matrices are taken for hidden ones.
    """
    params = list(params)
    given = {id(p) for p in params}
    outer: set[int] = set()
    if model is not None:
        heads = [
            m.weight for m in model.modules() if isinstance(m, nn.Linear) and id(m.weight) in given
        ]
        if not getattr(model, "embedding_is_head", False):
            outer = {id(weight) for weight in heads[-1:]}
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                outer.add(id(module.weight))
        for name, p in model.named_parameters():
            if "bias" in name.rpartition(".")[2]:  # a table of them, as for relative positions
                outer.add(id(p))

    def is_hidden(p: Tensor) -> bool:
        return p.ndim == 2 and id(p) not in outer

    groups = [
        {"params": [p for p in params if is_hidden(p) == use_muon], "use_muon": use_muon}
        for use_muon in (True, False)
    ]
    return [group for group in groups if group["params"]]


def matrices_and_rest(params: Iterable[Any], model: nn.Module | None) -> list[Group]:
    """`sgdf.param_groups` of the model, for those of its parameters that are given."""
    params = list(params)
    if model is None:
        return [{"params": params}]
    hidden = {id(p) for g in hidden_matrices(params, model) if g["use_muon"] for p in g["params"]}
    chosen: dict[bool | str, list[Tensor]] = {True: [], "stacked": [], False: []}
    kinds = {id(p): g["matrices"] for g in param_groups(model) for p in g["params"]}
    for p in params:
        # A head that is the embedding is no module: the last linear layer is not the head then.
        kind = kinds.get(id(p), False)
        chosen[kind or (id(p) in hidden)].append(p)
    return [{"params": ps, "matrices": kind} for kind, ps in chosen.items() if ps]


def naming_hidden(params: Iterable[Any], model: nn.Module | None) -> list[Group]:
    """The parameters as they are, as a group that names the hidden matrices among them."""
    params = list(params)
    groups = matrices_and_rest(params, model) if model is not None else []
    hidden = {id(p) for group in groups if group["matrices"] for p in group["params"]}
    return [{"params": params, "hidden": hidden}]


def soap(
    params: Iterable[Group],
    lr: float = 3e-3,
    betas: tuple[float, float] = (0.95, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    aux_lr: float | None = None,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10000,
) -> Optimizer:
    """pytorch_optimizer's SOAP; with an `aux_lr`, all but the hidden matrices get its Adam.

    Without, it preconditions embeddings and the head as well, as the class does.
    """
    from pytorch_optimizer import SOAP

    groups: list[Group] = []
    for group in params:
        settings = {name: value for name, value in group.items() if name != "hidden"}
        if aux_lr is None or "hidden" not in group:
            groups.append(settings)
            continue
        own = {"lr": aux_lr, "max_precondition_dim": 1}
        for is_hidden in (True, False):
            chosen = [p for p in group["params"] if (id(p) in group["hidden"]) == is_hidden]
            groups.append({**settings, "params": chosen, **({} if is_hidden else own)})
    return SOAP(
        [group for group in groups if group["params"]],
        lr,
        betas,
        weight_decay=weight_decay,
        precondition_frequency=precondition_frequency,
        max_precondition_dim=max_precondition_dim,
        eps=eps,
    )
