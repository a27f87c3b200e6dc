"""Language models through the command line, with a network and texts for a CPU."""

import io
import json
import math
import os
import re
import shlex
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.published import put
from runs.commands import folder_in
from sgdf_lab import data
from sgdf_lab.cli.main import main
from sgdf_lab.data import corpora, tokens
from sgdf_lab.data.fetch import Remote
from sgdf_lab.data.synthetic import make_text
from sgdf_lab.data.tokenizer import Tokenizer
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks.language import LanguageModel
from sgdf_lab.training.tokens import EvaluationWindows
from tasks.processes import (
    assert_refused,
    assert_resumes,
    assert_same_lines,
    assert_same_steps,
    lines,
    run_epoch,
    two_and_one,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[3]
TINY = ["text", "--model", "gpt-tiny", "--device", "cpu", "--set", "context=16"]
SYNTHETIC = [*TINY, "--data", "synthetic", "--set", "batch=4", "--set", "eval_tokens=512"]


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("SGDF_DATA", str(folder))
    return folder


def train(out: Path, *words: str) -> Path:
    assert main(["train", *SYNTHETIC, *words, "--out", str(out)]) == 0
    return folder_in(out)


def build(data_dir: Path | None = None, **overrides: Any) -> LanguageModel:
    overrides = {"batch": 4, "context": 16, "steps": 20, "eval_every": 10, **overrides}
    kind = overrides.pop("data", "synthetic")
    config = configs.make(
        "text", model="gpt-tiny", optimizer="adamw", data=kind, overrides=overrides
    )
    trainer = config.task_definition.module.build_trainer(
        config, torch.device("cpu"), data_dir=data_dir
    )
    assert isinstance(trainer, LanguageModel)
    return trainer


# --- the computation ------------------------------------------------------------------------------


def test_it_learns(tmp_path):
    """From ln 256 = 5.5 to less than the entropy of the letters, about 2.8."""
    folder = train(
        tmp_path, "--optimizer", "adamw", "--set", "lr=0.005", "--set", "steps=80",
        "--set", "eval_every=40", "--set", "batch=16",
    )  # fmt: skip
    first, last = lines(folder)
    assert last["val_loss"] < 2.4
    assert last["val_loss"] < first["val_loss"] < 5
    assert (last["step"], last["tokens"]) == (80, 80 * 16 * 16)
    assert last["bits_per_byte"] == pytest.approx(last["val_loss"] / math.log(2))
    result = json.loads((folder / "result.json").read_text())
    assert result["best_val_loss"] == result["final_val_loss"] == last["val_loss"]


def test_steps_and_evaluations_equal_a_plain_loop():
    """Mean loss per token, in two micro-batches, clipped, with a cosine schedule."""
    trainer, plain = build(accumulate=2), build()
    model, batches = plain.model, plain.batches
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for epoch in range(2):
        batches.begin(epoch)
        losses = []
        for i in range(10):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 + math.cos(math.pi * (10 * epoch + i) / 20)) / 2
            inputs, following = batches.take(torch.tensor(4 * i), 4)
            assert torch.equal(inputs[:, 1:], following[:, :-1])
            logits = model(inputs)
            loss = torch.nn.functional.cross_entropy(logits.mT, following)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        metrics = run_epoch(trainer)
        assert metrics["train_loss"] == pytest.approx(sum(losses) / 10, rel=1e-4)
        text = make_text()
        held_out = torch.from_numpy(text[tokens.split_of(text) :].copy()).long()
        count = (len(held_out) - 1) // 16
        with torch.no_grad():
            shown = held_out[: count * 16].view(count, 16)
            following = held_out[1 : count * 16 + 1].view(count, 16)
            expected = torch.nn.functional.cross_entropy(model(shown).mT, following)
        assert metrics["val_loss"] == pytest.approx(float(expected), rel=1e-4)
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_windows_depend_on_seed_and_step_alone():
    often, rarely, other = build(eval_every=5), build(eval_every=20), build()
    rarely.batches.begin(0)
    starts = []
    for epoch in range(4):
        often.batches.draw(epoch + 1)  # the wrong one is not used
        often.batches.begin(epoch)
        starts.append(often.batches.starts.clone())
    assert torch.equal(torch.cat(starts), rarely.batches.starts)
    other.batches.seed = 1
    other.batches.begin(0)
    assert not torch.equal(other.batches.starts, rarely.batches.starts[:40])
    assert int(rarely.batches.starts.min()) >= 0
    assert int(rarely.batches.starts.max()) + 16 < len(rarely.batches.tokens)


def test_the_last_window_can_be_drawn():
    """Its last target is the last token of the training text."""
    trainer = build()
    trainer.batches.tokens = trainer.batches.tokens[:18]
    starts = {int(start) for step in range(20) for start in trainer.batches._starts(step)}
    assert starts == {0, 1}


def test_evaluation_windows_are_spread_over_the_text_and_do_not_overlap():
    text = np.arange(101, dtype=np.uint8)
    few = EvaluationWindows(text, torch.device("cpu"), context=10, most=35)
    assert few.starts.tolist() == [0, 30, 60]
    every = EvaluationWindows(text, torch.device("cpu"), context=10, most=10_000)
    assert every.starts.tolist() == list(range(0, 100, 10))
    ((inputs, following),) = every.batches(8, 2)
    assert inputs[1].tolist() == list(range(90, 100))
    assert following[1].tolist() == list(range(91, 101))
    assert list(every.batches(3, 0)) == []


def test_sophia_gets_its_hessian():
    config = configs.make(
        "text", model="gpt-tiny", optimizer="sophia-g", data="synthetic",
        overrides={"batch": 3, "context": 16, "steps": 20, "eval_every": 20, "accumulate": 2},
    )  # fmt: skip
    trainer = config.task_definition.module.build_trainer(config, torch.device("cpu"))
    assert math.isfinite(run_epoch(trainer)["val_loss"])
    state = next(iter(trainer.optimizer.state.values()))
    assert float(state["hessian"].max()) > 0


# --- a network of one's own -----------------------------------------------------------------------

NETWORKS = """
from torch import nn

class Pairs(nn.Module):
    '''Each token predicts the next.'''
    def __init__(self, vocabulary):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)
    def forward(self, tokens):
        return self.table(tokens)

class Seer(Pairs):
    def forward(self, tokens):
        return super().forward(tokens.roll(-1, 1))

def pairs(vocabulary, context):
    return Pairs(vocabulary)

def seer(vocabulary, context):
    return Seer(vocabulary)

def too_many(vocabulary, context):
    return Pairs(vocabulary + 1)

def classifier(num_classes):
    return Pairs(num_classes)
"""


@pytest.fixture
def networks(tmp_path, monkeypatch):
    (tmp_path / "my_text_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_text_networks", None)


def test_a_network_of_ones_own_learns(tmp_path, networks):
    words = ["--model", "my_text_networks:pairs", "--optimizer", "adamw", "--set", "lr=0.05",
             "--set", "steps=60", "--set", "eval_every=30"]  # fmt: skip
    first, last = lines(train(tmp_path / "runs", *words))
    assert last["val_loss"] < first["val_loss"] < 5.5
    assert last["val_loss"] < 4.2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("seer", "sees the future"),
        ("too_many", "returns 2 x 16 x 257 outputs for 2 windows, not 2 x 16 x 256"),
        ("classifier", "cannot be called with vocabulary=256, context=16"),
    ],
)
def test_a_network_that_is_no_language_model(tmp_path, networks, capsys, name, sentence):
    words = [*SYNTHETIC, "--model", f"my_text_networks:{name}"]
    assert_refused(words, sentence, tmp_path / "runs", capsys)


# --- a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "filter-muon-eigen"])
def test_a_killed_run_resumes_and_ends_the_same(optimizer, tmp_path, teams, own_data_folder):
    words = ["train", *SYNTHETIC, "--set", "steps=12", "--set", "eval_every=2"]
    words += ["--optimizer", optimizer]
    assert_resumes(teams, tmp_path, words, 2, env={"SGDF_DATA": str(own_data_folder)})


@pytest.mark.parametrize("shard", [[], ["--shard"]], ids=["batches", "weights"])
def test_two_processes_take_the_steps_of_one(tmp_path, shard, teams, own_data_folder):
    """Batches of 5 windows are shared as 3 and 2, and 33 windows of the evaluation as 17 and 16."""
    words = ["train", *SYNTHETIC, "--set", "steps=8", "--set", "eval_every=4",
             "--set", "batch=5", "--set", "eval_tokens=528", "--optimizer", "sgd"]  # fmt: skip
    request = {"more": shard, "env": {"SGDF_DATA": str(own_data_folder)}}
    folders = two_and_one(teams, tmp_path, words, "best validation loss", **request)
    assert_same_lines(*folders, rel=1e-4)
    assert_same_steps(build().model.state_dict(), *folders)


def test_a_test_text_is_looked_at_once_and_not_validated_on(tmp_path):
    words = ["--set", "steps=8", "--set", "eval_every=4", "--set", "test_tokens=100000",
             "--set", "eval_tokens=100000", "--optimizer", "sgd"]  # fmt: skip
    folder = train(tmp_path, *words)
    first, last = lines(folder)
    assert "test_loss" not in first
    trainer = build(test_tokens=100_000, eval_tokens=100_000)
    assert trainer.test is not None
    half = len(trainer.test.tokens)
    assert abs(half - len(trainer.evaluation.tokens)) <= 1
    assert half + len(trainer.evaluation.tokens) == len(build().evaluation.tokens)
    trainer.model.load_state_dict(weights(folder))
    for name, part in (("val_loss", trainer.evaluation), ("test_loss", trainer.test)):
        expected = float(trainer._evaluate_on(part)) / len(part) / part.context
        assert last[name] == pytest.approx(expected, rel=1e-5)
    assert last["test_loss"] != last["val_loss"]


def test_a_run_whose_validation_loss_is_not_finite_has_diverged(tmp_path, monkeypatch, capsys):
    broken = {"val_loss": (torch.tensor(math.nan), 1.0)}
    monkeypatch.setattr(LanguageModel, "_evaluate", lambda self: broken)
    folder = train(tmp_path, "--set", "steps=8", "--set", "eval_every=4", "--optimizer", "sgd")
    assert json.loads((folder / "result.json").read_text())["status"] == "diverged"
    assert math.isfinite(lines(folder)[0]["train_loss"])
    assert "diverged in step 4" in capsys.readouterr().out


# --- length ---------------------------------------------------------------------------------------


def test_the_length_in_steps_and_in_tokens():
    config = configs.make("text", overrides={"steps": 1500, "eval_every": 50})
    assert (config.epochs, config.interval, config.length) == (30, 50, "1500 steps")
    assert configs.make("text").length == "2000 steps"
    often = configs.make("text", overrides={"eval_every": 50})
    assert often.length == "2000 steps"  # how often it is evaluated does not change its length
    million = configs.make("text", model="gpt-tiny", overrides={"tokens": 10**6})
    assert million.length == "300 steps"  # 245 of 64 windows of 64 tokens, rounded up
    short = configs.make("text", overrides={"tokens": 10**6, "context": 8, "batch": 125})
    assert short.length == "1000 steps"
    dropped = configs.make("text", overrides={"schedule": "step", "milestones": [400, 900]})
    assert dropped.milestones == (4, 9)
    assert configs.Config.from_json(dropped.as_json(), "there").name == dropped.name


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 150}, "steps are multiples of eval_every, 100, which 150 is not: give 100"),
        ({"steps": 0}, "steps is an integer of at least 1, not 0"),
        ({"steps": 100, "tokens": 5}, "give steps or tokens, not both"),
        ({"eval_every": 0}, "eval_every is an integer of at least 1, not 0"),
        ({"milestones": 150, "schedule": "step"}, "milestones are multiples of eval_every"),
        ({"eval_every": 300}, "steps are multiples of eval_every, 300, which 2000 is not"),
        ({"tokens": "many"}, "tokens is an integer of at least 1, not 'many'"),
        ({"tokens": 100, "batch": None}, "batch is an integer of at least 1, not None"),
        ({"tokens": 100, "context": -3}, "context is an integer of at least 1, not -3"),
        ({"tokens": 100, "context": "x"}, "context is an integer of at least 1, not 'x'"),
    ],
)
def test_a_wrong_length(settings, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        configs.make("text", overrides=settings)


def test_epochs_are_refused_and_damaged_settings_are_named():
    with pytest.raises(UserError, match="text counts steps, not epochs: --set steps=N"):
        configs.make("text", epochs=3)
    with pytest.raises(UserError, match=r"no setting 'steps'"):
        configs.make("digits", optimizer="sgd", overrides={"steps": 100})
    values = configs.make("text").as_json() | {"options": {"eval_every": "often"}}
    with pytest.raises(UserError, match="there: eval_every is an integer"):
        configs.Config.from_json(values, "there")


# --- the text -------------------------------------------------------------------------------------


LINE = b"To be, or not to be, that is the question.\n"


def corpus(folder: Path, text: bytes = 40 * LINE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_bytes(text)
    return folder


def test_a_folder_is_read_in_the_order_of_names(tmp_path, own_data_folder):
    folder = corpus(tmp_path / "mine", b"first\n" * 30)
    (folder / "sub").mkdir()
    (folder / "sub" / "b.md").write_bytes(b"second\n" * 40)
    (folder / ".hidden").write_bytes(b"no")
    trainer = build(data="real", corpus=str(folder), context=8)
    text = b"first\n" * 30 + b"second\n" * 40
    held_out = bytes(trainer.evaluation.tokens.numpy())
    assert bytes(trainer.batches.tokens.numpy()) + held_out == text
    assert held_out == b"second\n" * (len(held_out) // 7), "it begins with a line"
    assert 0.03 * len(text) < len(held_out) <= 0.05 * len(text)
    (file,) = (own_data_folder / "tokens").iterdir()
    assert file.read_bytes() == text


@pytest.mark.parametrize("place", ["file", "text", "txt"])
def test_text_in_the_data_folder(tmp_path, place):
    folder = corpus(tmp_path / "given" / "text" if place == "text" else tmp_path / "given")
    (tmp_path / "given" / "picture.png").write_bytes(b"\0" * 999)
    where = folder / "a.txt" if place == "file" else tmp_path / "given"
    trainer = build(where, data="real")
    assert len(trainer.batches.tokens) + len(trainer.evaluation.tokens) == 40 * 43


def test_hidden_files_and_folders_in_the_data_folder_are_no_text(tmp_path):
    corpus(tmp_path / "mine")
    alone = build(data="real", data_dir=tmp_path / "mine").batches.fingerprint()
    (tmp_path / "mine" / "._a.txt").write_bytes(b"what a file system wrote")
    (tmp_path / "mine" / "folder.txt").mkdir()
    assert build(data="real", data_dir=tmp_path / "mine").batches.fingerprint() == alone
    (tmp_path / "mine" / "a.txt").unlink()
    with pytest.raises(UserError, match=r"text is not in .*mine: name a file or folder"):
        build(data="real", data_dir=tmp_path / "mine")


def test_the_token_file_is_made_once_and_again_if_the_text_changes(tmp_path, own_data_folder):
    folder = corpus(tmp_path / "mine")
    first = build(data="real", corpus=str(folder))
    held_out = first.evaluation.tokens.clone()  # the tensor is the mapped file
    (file,) = (own_data_folder / "tokens").iterdir()
    made = file.stat().st_mtime_ns
    build(data="real", corpus=str(folder))
    assert file.stat().st_mtime_ns == made
    file.write_bytes(file.read_bytes()[:-1] + b"!")  # damaged
    again = build(data="real", corpus=str(folder))
    assert torch.equal(again.evaluation.tokens, held_out)
    (folder / "a.txt").write_bytes(b"Something else, and long enough.\n" * 60)
    other = build(data="real", corpus=str(folder))
    assert other.batches.fingerprint() != first.batches.fingerprint()
    assert len(list((own_data_folder / "tokens").iterdir())) == 2


def test_two_texts_are_two_runs(tmp_path, monkeypatch):
    """In two data folders, and under one relative path in two folders or at two times."""
    runs = tmp_path / "runs"
    short = [*TINY, "--set", "batch=4", "--set", "steps=4", "--set", "eval_every=4"]

    def train_on(*words: str) -> dict[str, Any]:
        before = set(runs.iterdir()) if runs.exists() else set()
        assert main(["train", *short, "--optimizer", "sgd", *words, "--out", str(runs)]) == 0
        (new,) = set(runs.iterdir()) - before
        (line,) = lines(new)
        digest = json.loads((new / "env.json").read_text())["data"]
        options = json.loads((new / "config.json").read_text())["options"]
        assert digest.startswith(options["fingerprint"])
        return line

    texts = {"one": 40 * LINE, "two": b"Something else, and long enough.\n" * 60}
    for name, content in texts.items():
        corpus(tmp_path / name, content)
        corpus(tmp_path / name / "mine", content)
    losses = [train_on("--data-dir", str(tmp_path / name)) for name in texts]
    assert losses[0] != losses[1]
    for name, line in zip(texts, losses, strict=True):
        monkeypatch.chdir(tmp_path / name)
        assert train_on("--set", "corpus=mine") == line
    (tmp_path / "two" / "mine" / "a.txt").write_bytes(b"And now a third text, of its own.\n" * 60)
    assert train_on("--set", "corpus=mine") not in losses
    # The same text at another place is the same run.
    corpus(tmp_path / "copy")
    count = len(list(runs.iterdir()))
    words = ["--optimizer", "sgd", "--data-dir", str(tmp_path / "copy"), "--out", str(runs)]
    assert main(["train", *short, *words]) == 0
    assert len(list(runs.iterdir())) == count


def test_a_named_text_may_lie_elsewhere(tmp_path, monkeypatch):
    """The run resumes, and another seed is of the same cell; its settings know the text."""
    words = [*TINY, "--set", "batch=4", "--set", "steps=4", "--set", "eval_every=2"]
    here, there = (corpus(tmp_path / name) / "a.txt" for name in ("here", "there"))
    monkeypatch.chdir(tmp_path / "here")
    assert main(["train", *words, "--set", "corpus=a.txt", "--out", str(tmp_path / "runs")]) == 0
    folder = folder_in(tmp_path / "runs")
    (folder / "result.json").unlink()
    words += ["--set", f"corpus={there}", "--out", str(tmp_path / "runs")]
    assert main(["train", *words, "--seed", "0", "1"]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert json.loads((folder / "env.json").read_text())["from_epoch"] == 2
    records, _ = read_runs([tmp_path / "runs"])
    assert len({record.config.cell_key for record in records}) == 1
    planned = [configs.make("text", overrides={"corpus": str(path)}) for path in (here, there)]
    assert planned[0].name != planned[1].name  # a plan has not read the texts
    found = [configs.with_data(config, None) for config in planned]
    assert found[0].name == found[1].name
    there.write_bytes(b"Something else, and long enough.\n" * 60)
    assert configs.with_data(planned[1], None).name != found[0].name


def test_a_run_on_a_text_that_has_changed_is_refused(tmp_path):
    folder = corpus(tmp_path / "mine")
    config = configs.make("text", model="gpt-tiny", overrides={"context": 16}, data_dir=folder)
    corpus(folder, b"Something else, and long enough.\n" * 60)
    with pytest.raises(UserError, match=r"a\.txt does not hold the data of this run: it has chang"):
        config.task_definition.module.check(config, folder)


def test_the_synthetic_text_is_the_same_on_every_machine():
    text = make_text()
    assert bytes(text[:47]) == b"nobody waits for three stones behind the hill.\n"
    assert len(text) == 1 << 17
    assert tokens.tokens_of_text(text, Tokenizer(), "").digest[:12] == "66bee7c0928e"


# --- tokenizers -----------------------------------------------------------------------------------


def words_tokenizer(**more: Any) -> str:
    """A tokenizer.json; the number of its last word is far off."""
    model = {
        "type": "WordLevel",
        "vocab": {"?": 0, "to": 1, "be": 2, "not": 5000},
        "unk_token": "?",
    }
    parts = {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}}
    return json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model, **more})


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_text(words_tokenizer())
    return path


def test_a_tokenizer_of_the_user(tmp_path, own_data_folder, tokenizer):
    folder = corpus(tmp_path / "mine")
    settings = {"data": "real", "corpus": str(folder), "tokenizer": str(tokenizer), "context": 5}
    trainer = build(**settings)
    assert len(trainer.batches.tokens) + len(trainer.evaluation.tokens) == 40 * 13
    assert trainer.model.embedding.weight.shape == (5001, 64)
    assert trainer.bytes_per_token == pytest.approx(86 / 26)
    metrics = run_epoch(trainer)
    expected = metrics["val_loss"] * 26 / 86 / math.log(2)
    assert metrics["bits_per_byte"] == pytest.approx(expected)
    files = sorted(path.name for path in (own_data_folder / "tokens").iterdir())
    assert [name.rpartition(".")[2] for name in files] == ["u8", "u2", "json"]
    again = build(**settings)
    assert torch.equal(again.batches.tokens, trainer.batches.tokens)
    assert trainer.batches.fingerprint() != build(data="real", corpus=str(folder)).batches.digest


@pytest.mark.parametrize("task", ["text", "enwik8"])
def test_two_tokenizers_are_two_runs(tmp_path, tokenizer, task):
    folder = corpus(tmp_path / "mine")
    overrides = {"tokenizer": str(tokenizer), "context": 5}
    first = configs.make(task, overrides=overrides, data_dir=folder)
    if task == "text":
        data_of_run = first.task_definition.module.build_trainer(
            first, torch.device("cpu"), data_dir=folder
        ).batches
        assert data_of_run.fingerprint().startswith(first.option("fingerprint"))
    tokenizer.write_text('{"model": {"type": "Unigram"}}')
    other = configs.make(task, overrides=overrides, data_dir=folder)
    assert first.name != other.name
    plain = configs.make(task, data_dir=folder)
    assert ("fingerprint" in plain.options) == (task == "text")
    if task == "text":
        with pytest.raises(UserError, match=r"tokenizer\.json does not hold the data of this run"):
            first.task_definition.module.check(first, folder)


def test_a_tokenizer_reads_the_whole_text_and_may_leave_numbers_out(tmp_path):
    """Files of models for sentences cut their input, or fill it up to a length."""
    folder, path = corpus(tmp_path / "mine"), tmp_path / "words.json"
    cut = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    filled = {"strategy": {"Fixed": 7}, "direction": "Right", "pad_to_multiple_of": None,
              "pad_id": 0, "pad_type_id": 0, "pad_token": "?"}  # fmt: skip
    path.write_text(words_tokenizer(truncation=cut, padding=filled))
    trainer = build(data="real", corpus=str(folder), tokenizer=str(path), context=5)
    seen = torch.cat((trainer.batches.tokens, trainer.evaluation.tokens)).tolist()
    assert seen == 40 * [1, 2, 0, 0, 5000, 1, 2, 0, 0, 0, 0, 0, 0]
    assert math.isfinite(run_epoch(trainer)["val_loss"])


def test_a_long_text_is_encoded_in_parts_that_end_after_lines(monkeypatch):
    monkeypatch.setattr("sgdf_lab.data.tokenizer.CHUNK", 50)
    seen: list[str] = []

    class Recorder:
        def encode(self, text: str) -> np.ndarray:
            seen.append(text)
            return np.zeros(0, np.uint32)

    for text in ("äöü, ein Satz\n" * 20, "ä" * 200):
        seen.clear()
        made = np.frombuffer(text.encode(), dtype=np.uint8)
        list(Tokenizer("words", 1000, "x", Recorder()).encode(made))
        assert "".join(seen) == text
        assert len(seen) > 3
        assert all(part.endswith("\n") for part in seen) == ("\n" in text)


# --- mistakes of a user ---------------------------------------------------------------------------


def test_bad_text_is_one_sentence(tmp_path, capsys):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "tiny.txt").write_bytes(b"Too little.")
    (tmp_path / "nothing").mkdir()
    corpus(tmp_path / "mine")
    cases = [
        (["corpus=nowhere"], "there is no file or folder nowhere"),
        ([f"corpus={tmp_path / 'empty.txt'}"], "empty.txt is empty: there is nothing to train on"),
        ([f"corpus={tmp_path / 'nothing'}"], "there are no files in"),
        ([f"corpus={tmp_path / 'tiny.txt'}"], "tiny.txt has 11 tokens, too few for a context"),
        ([f"corpus={tmp_path / 'mine'}", "context=100"],
         "the validation part of"),
        ([f"corpus={tmp_path / 'mine'}", "context=100000"], "too few for a context of 100,000"),
        (["corpus=3"], "corpus is the path of a file, not 3"),
        ([f"corpus={tmp_path / 'mine'}", "context=-1"],
         "context is an integer of at least 0, not -1"),
        ([f"corpus={tmp_path / 'mine'}", "eval_tokens=none"],
         "eval_tokens is an integer of at least 1, not None"),
        ([], "--set corpus=PATH"),
        ([f"corpus={tmp_path / 'mine'}", "validation=10"], "always holds out the last 5%"),
    ]  # fmt: skip
    for settings, sentence in cases:
        words = [word for setting in settings for word in ("--set", setting)]
        assert_refused([*TINY, *words], sentence, tmp_path / "runs", capsys)
    words = [*TINY, "--data-dir", str(tmp_path / "no")]
    assert_refused(words, "there is no file or folder", tmp_path / "runs", capsys)


def test_a_bad_tokenizer_is_one_sentence(tmp_path, tokenizer, monkeypatch):
    folder = corpus(tmp_path / "mine", b"caf\xe9 au lait\n" * 100)
    settings = {"data": "real", "corpus": str(folder)}
    build(**settings, context=8)  # bytes do not care
    with pytest.raises(UserError, match=r"a.txt is not UTF-8 at byte 3, which a tokenizer needs"):
        build(**settings, tokenizer=str(tokenizer))
    vocabulary = tmp_path / "vocab.bpe"
    vocabulary.write_text("#version: 0.2")
    with pytest.raises(UserError, match=r"vocab.bpe has an unknown format: a tokenizer is a"):
        build(**settings, tokenizer=str(vocabulary))
    with pytest.raises(UserError, match=r"there is no file nothing\.json"):
        build(**settings, tokenizer="nothing.json")
    with pytest.raises(UserError, match="tokenizer is the path of a file, not 7"):
        build(**settings, tokenizer=7)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="needs the package tokenizers: pip install tokenizers"):
        build(**settings, tokenizer=str(tokenizer))


def split_by(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


#: What brings the package down, or would take all memory.
HOSTILE = {
    "no model": {"model": {"broken": True}},
    "a pattern that is none": {"pre_tokenizer": split_by("(?<")},
    "a panic when it is read": {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    },
    "a panic when it is used": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}
    },
    "a word of a number beyond all": {
        "model": {"type": "WordLevel", "vocab": {"?": 0, "to": 2**31}, "unk_token": "?"}
    },
    "long replacements": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 20_000}
    },
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_tokenizer_is_one_sentence(tmp_path, tokenizer, what, monkeypatch):
    """Tried in this process, some would end it."""
    monkeypatch.setattr("sgdf_lab.data.tokenizer.MEMORY", 1 << 30)
    tokenizer.write_text(words_tokenizer(**HOSTILE[what]))
    folder = corpus(tmp_path / "mine", 20_000 * LINE)
    with pytest.raises(UserError, match=r"tokenizer\.json (is not a|has) token"):
        build(data="real", corpus=str(folder), tokenizer=str(tokenizer), context=5)


def test_a_tokenizer_that_is_no_file_is_not_waited_for(tmp_path):
    folder = corpus(tmp_path / "mine")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(UserError, match=rf"{name}\.json is not a regular file"):
            build(data="real", corpus=str(folder), tokenizer=str(tmp_path / f"{name}.json"))


def test_a_changed_count_of_training_tokens_is_noticed(tmp_path, own_data_folder, tokenizer):
    """It would train on the validation text, under the same name."""
    settings = {"data": "real", "corpus": str(corpus(tmp_path / "mine")),
                "tokenizer": str(tokenizer), "context": 5}  # fmt: skip
    expected = build(**settings).batches.tokens
    (facts,) = (own_data_folder / "tokens").glob("*.json")
    written = json.loads(facts.read_text())
    facts.write_text(json.dumps({**written, "train": 40 * 13 - 6}))
    assert torch.equal(build(**settings).batches.tokens, expected)
    assert json.loads(facts.read_text()) == written


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SGDF_DATA", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"the token file cannot be written: .*SGDF_DATA"):
        build(data="real", corpus=str(corpus(tmp_path / "mine")))


# --- published texts ------------------------------------------------------------------------------


def published(monkeypatch: pytest.MonkeyPatch, url: str, text: bytes) -> None:
    import hashlib

    facts = replace(
        data.find("enwik8"),
        train=len(text) - 100,
        test=100,
        remotes=(Remote(f"{url}/enwik8.zip", ""),),
        digest=f"md5:{hashlib.md5(text).hexdigest()}",
    )
    put(monkeypatch, "enwik8", facts)


def zipped(text: bytes, name: str = "enwik8") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    return file.getvalue()


def test_enwik8_is_unpacked_checked_and_trained_on(tmp_path, own_data_folder, monkeypatch, capsys):
    """The archive is here already, as after a download; `test_data_fetch` tests those."""
    text = b"<page>An article.</page>\n" * 100
    published(monkeypatch, "http://127.0.0.1:9", text)
    words = ["train", "enwik8", *TINY[1:], "--set", "steps=2", "--set", "eval_every=2",
             "--set", "batch=2", "--optimizer", "sgd", "--out", str(tmp_path / "runs")]  # fmt: skip
    assert main(words) == 1
    assert "run `sgdf data fetch enwik8`" in capsys.readouterr().err
    home = own_data_folder / "enwik8"
    home.mkdir(parents=True)
    (home / "enwik8.zip").write_bytes(zipped(text))
    assert main(["data", "fetch", "enwik8"]) == 0
    assert "enwik8: 2,500 bytes, checked" in capsys.readouterr().out
    assert not (home / "enwik8.zip").exists()
    assert main(words) == 0
    (home / "enwik8").write_bytes(text[:-1] + b" ")
    assert main(["data", "fetch", "enwik8"]) == 1
    assert "is not the published text (its md5 differs)" in capsys.readouterr().err
    (home / "enwik8").write_bytes(text[:-1])
    assert main([*words, "--seed", "1"]) == 1
    assert "has 2,499 bytes, not the published 2,500" in capsys.readouterr().err


@pytest.mark.parametrize("archive", [b"no archive", zipped(b"x", "other")])
def test_a_damaged_archive_is_named(own_data_folder, monkeypatch, capsys, archive):
    published(monkeypatch, "http://127.0.0.1:9", b"text")
    (own_data_folder / "enwik8").mkdir(parents=True)
    (own_data_folder / "enwik8" / "enwik8.zip").write_bytes(archive)
    assert main(["data", "fetch", "enwik8"]) == 1
    assert "enwik8.zip is damaged" in capsys.readouterr().err
    assert not (own_data_folder / "enwik8" / "enwik8").exists()


def test_your_own_text_cannot_be_fetched(own_data_folder, capsys):
    assert main(["data", "fetch", "text"]) == 1
    assert "cannot be downloaded: name a file or folder with --set corpus=PATH" in (
        capsys.readouterr().err
    )
    corpus(own_data_folder / "text")
    assert main(["data", "fetch", "text"]) == 0
    assert corpora.files_at(own_data_folder / "text") == data.find("text").find()


# --- docs -----------------------------------------------------------------------------------------


def test_the_commands_of_the_docs_run(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"Remember the milk, and the bread.\n" * 80)
    (table,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    (tmp_path / "text.toml").write_text(table)
    commands = [
        shlex.split(line.partition("  #")[0])
        for block in re.findall(r"```\n(sgdf .*?)```", text, re.S)
        for line in block.splitlines()
        if "enwik8" not in line and "encyclopedia" not in line
    ]
    assert len(commands) == 4
    for _, *words in commands:
        here = {"train": ["--device", "cpu"], "sweep": ["--device", "cpu", "--jobs", "1"]}
        assert main([*words, *here.get(words[0], [])]) == 0, words
    losses = [lines(folder)[-1]["val_loss"] for folder in tmp_path.glob("runs*/text-*-s?-*")]
    assert len(losses) == 2 + 8  # with two trials and two seeds of two optimizers
    assert min(losses) < 3.5
