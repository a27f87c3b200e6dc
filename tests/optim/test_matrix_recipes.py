"""The recipes of docs/matrices.md, as they stand there."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import sgdf

PAGE = Path(__file__).parents[2] / "docs" / "matrices.md"


def recipe(number: int) -> str:
    """The code of a recipe, by its place on the page."""
    section = PAGE.read_text(encoding="utf-8").partition("## Recipes")[2].partition("\n## ")[0]
    return section.split("```python\n")[number + 1].partition("```")[0]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class NanoGPT(nn.Module):
    """With nanoGPT's names: a tied head, and positions."""

    def __init__(self, words: int = 13, width: int = 8) -> None:
        super().__init__()
        parts = {"wte": nn.Embedding(words, width), "wpe": nn.Embedding(6, width),
                 "h": nn.ModuleList([Block(width), Block(width)])}  # fmt: skip
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, words):
        x = self.transformer.wte(words) + self.transformer.wpe.weight[: words.shape[1]]
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(x)


def steps(model, optimizer, inputs, targets, count=25):
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_nanogpt():
    torch.manual_seed(0)
    model = NanoGPT()
    made = {"sgdf": sgdf, "model": model}
    exec(recipe(0), made)
    optimizer = made["optimizer"]
    names = {id(p): name for name, p in model.named_parameters()}
    kinds = {names[id(p)]: g["matrices"] for g in optimizer.param_groups for p in g["params"]}
    assert {name for name, kind in kinds.items() if kind} == {
        f"transformer.h.{k}.{part}.weight" for k in (0, 1) for part in ("up", "down")
    }
    words = torch.randint(13, (16, 6))
    losses = steps(model, optimizer, words, words)
    assert losses[-1] < losses[0]


def test_fsdp2():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        model = nn.Module()
        model.blocks = nn.ModuleList([Block(8), Block(8)])
        model.forward = lambda x: model.blocks[1](model.blocks[0](x))
        mesh = init_device_mesh("cpu", (1,))
        made = {
            "sgdf": sgdf,
            "model": model,
            "fully_shard": lambda module: fully_shard(module, mesh=mesh),
        }
        exec(recipe(2), made)
        optimizer = made["optimizer"]
        x = torch.randn(16, 8)
        losses = steps(model, optimizer, x, torch.arange(16) % 8)
        assert losses[-1] < losses[0]
        assert all(isinstance(s["exp_avg"], DTensor) for s in optimizer.state.values())
    finally:
        dist.destroy_process_group()


def test_the_trainer_of_hugging_face(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = Block(8), nn.Linear(8, 4)

        def forward(self, x, labels):
            logits = self.head(self.body(x))
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = Classifier()
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=10, per_device_train_batch_size=8, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True, lr_scheduler_type="linear",
    )  # fmt: skip
    data = [{"x": torch.randn(8), "labels": torch.tensor(k % 4)} for k in range(64)]
    optimizer = sgdf.FilterMuon(sgdf.param_groups(model), lr=2e-3, aux_lr=6e-4)
    made = {"Trainer": transformers.Trainer, "model": model, "args": args, "data": data,
            "optimizer": optimizer}  # fmt: skip
    exec(recipe(1), made)
    made["trainer"].train()
    assert made["trainer"].state.global_step == 10
    rates = {group["matrices"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {True: 0.0, False: 0.0}  # the schedule is at its end, for both
    assert len(optimizer.state) == len(list(model.parameters()))
