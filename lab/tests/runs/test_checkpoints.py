"""Which checkpoints a run resumes from: its own, whole ones. All others are named and set aside."""

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import damage
from sgdf_lab.reports.page import last_picture
from sgdf_lab.runs import config as configs
from sgdf_lab.runs import run_folder
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.progress import MessagesOnly
from sgdf_lab.runs.records import read_runs
from sgdf_lab.runs.session import RunContext, train
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks import classify
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.images import ResidentBatches

CPU = torch.device("cpu")
OWN = "own_optimizers."


def run_of(optimizer: str = "sgdf", epochs: int = 3, seed: int = 0, **overrides: Any) -> Config:
    overrides = {"batch": 512, "lr": 0.1, **overrides}
    return configs.make(
        "digits", optimizer=optimizer, epochs=epochs, seed=seed, data="synthetic",
        overrides=overrides,
    )  # fmt: skip


def start(config: Config, out: Path, team: Team = SINGLE_PROCESS) -> list[str]:
    """Train to the end; returns the messages."""
    messages: list[str] = []
    train([config], RunContext(out, CPU), MessagesOnly(messages.append), team)
    return messages


def begin(config: Config, out: Path, epochs: int = 2) -> Path:
    """Train so many epochs, each of them saved; returns the folder."""
    asked = itertools.count(1)

    class Asked(Team):
        def any(self, flag: bool) -> bool:
            return next(asked) >= epochs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "SAVING_SHARE", 1e9)
        with pytest.raises(KeyboardInterrupt):
            start(config, out, Asked())
    return out / config.name


def numbers(out: Path, config: Config) -> bytes:
    return (out / config.name / "metrics.jsonl").read_bytes()


def from_epoch(out: Path, config: Config) -> int:
    environment = json.loads((out / config.name / "env.json").read_text())
    return int(environment["from_epoch"])


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two epochs saved."""
    return begin(run_of(), tmp_path_factory.mktemp("begun"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The metrics of the uninterrupted run."""
    out = tmp_path_factory.mktemp("straight")
    start(run_of(), out)
    return numbers(out, run_of())


@pytest.fixture
def half_done(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / begun.name))


def read(path: Path) -> dict[str, Any]:
    return dict(torch.load(path, weights_only=True))


# --- whose it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [run_of("adam"), run_of(epochs=9), run_of(seed=1), run_of(lr=0.2)],
    ids=["optimizer", "epochs", "seed", "setting"],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(other, half_done, straight, tmp_path):
    folder = begin(other, tmp_path / "other", epochs=3 if other.epochs > 3 else 2)
    shutil.copy(folder / "last.pt", half_done / "last.pt")
    messages = start(run_of(), tmp_path)
    assert messages == [
        f"{half_done / 'last.pt'} belongs to run {other.name}, kept as last.pt.foreign: "
        "the one before it is used"
    ]
    assert from_epoch(tmp_path, run_of()) == 1
    assert numbers(tmp_path, run_of()) == straight


def test_two_checkpoints_of_another_run_start_the_run_again(half_done, straight, tmp_path):
    other = begin(run_of("adam"), tmp_path / "other")
    for name in ("last.pt", "previous.pt"):
        shutil.copy(other / name, half_done / name)
    messages = start(run_of(), tmp_path)
    assert len(messages) == 2
    assert all(m.endswith(": the run starts again") for m in messages)
    assert from_epoch(tmp_path, run_of()) == 0
    assert numbers(tmp_path, run_of()) == straight


def test_a_checkpoint_from_other_data_is_refused(half_done, tmp_path, monkeypatch):
    monkeypatch.setattr(ResidentBatches, "fingerprint", lambda self: "other")
    messages = start(run_of(), tmp_path)
    assert [re.sub(r"^.*/", "", m) for m in messages] == [
        "last.pt belongs to a run on other data, kept as last.pt.foreign: the run starts again",
        "previous.pt belongs to a run on other data, kept as previous.pt.foreign: the run starts "
        "again",
    ]


def test_the_fingerprint_is_of_the_data_alone():
    dataset = classify.load_dataset("digits", None, True)

    def fingerprint(split=dataset.train, seed=0):
        return ResidentBatches(split, dataset, CPU, seed=seed, augmented=False).fingerprint()

    assert fingerprint() == fingerprint(seed=3)
    labels = dataset.train.labels.clone()
    labels[7] = 1 - labels[7].clamp(max=1)
    assert fingerprint() != fingerprint(type(dataset.train)(dataset.train.images, labels))
    assert fingerprint() != fingerprint(type(dataset.train)(dataset.train.images ^ 1, labels))


# --- what is in it --------------------------------------------------------------------------------


def is_refused(folder: Path, straight: bytes) -> None:
    messages = start(run_of(), folder.parent)
    assert len(messages) == 1, messages
    pattern = rf"{folder}/last.pt is damaged \(.+\), kept as last.pt.damaged: the one before it "
    assert re.fullmatch(pattern + "is used", messages[0]), messages
    assert from_epoch(folder.parent, run_of()) == 1
    assert numbers(folder.parent, run_of()) == straight


@pytest.mark.parametrize("change", damage.CONTENTS.values(), ids=damage.CONTENTS)
def test_wrong_contents_are_damage(change, half_done, straight):
    change(half_done / "last.pt")
    is_refused(half_done, straight)
    assert not damage.marker_of(half_done / "last.pt").exists()


def test_the_code_in_them_would_run(half_done):
    damage.CONTENTS["code in a checkpoint"](half_done / "last.pt")
    torch.load(half_done / "last.pt", weights_only=False)
    assert damage.marker_of(half_done / "last.pt").exists()


def test_an_optimizer_without_state_resumes(tmp_path):
    """Plain SGD keeps none: nothing is missing from its checkpoint."""
    config = run_of("sgd", momentum=0.0)
    begin(config, tmp_path)
    (tmp_path / config.name / "last.pt").unlink()
    assert start(config, tmp_path) == []
    assert from_epoch(tmp_path, config) == 1
    start(config, tmp_path / "straight")
    assert numbers(tmp_path, config) == numbers(tmp_path / "straight", config)


def test_a_refused_state_changes_nothing():
    config = run_of()
    trainer = classify.build_trainer(config, CPU)
    for _ in trainer.epoch():
        pass
    state = trainer.state_dict()
    fresh = classify.build_trainer(config, CPU)
    before = {name: value.clone() for name, value in fresh.model.state_dict().items()}
    state["optimizer"]["param_groups"][0]["params"].pop()
    with pytest.raises(run_folder.DamagedCheckpoint, match="groups of optimizer are not those"):
        fresh.load_state_dict(state)
    assert fresh.steps_done == 0
    assert not fresh.optimizer.state
    assert all(torch.equal(before[name], v) for name, v in fresh.model.state_dict().items())


# --- a user's optimizer ---------------------------------------------------------------------------


def test_numpy_numbers_in_an_optimizer_resume_bit_for_bit(tmp_path):
    config = run_of(OWN + "WithNumbers", epochs=4)
    start(config, tmp_path / "straight")
    begin(config, tmp_path)
    assert start(config, tmp_path) == []
    assert from_epoch(tmp_path, config) == 2
    assert numbers(tmp_path, config) == numbers(tmp_path / "straight", config)
    last = [read(out / config.name / "last.pt") for out in (tmp_path, tmp_path / "straight")]
    assert last[0]["layout"] == last[1]["layout"], "also their types"


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("WithFunction", r"param_groups\[0\]\['schedule'\] is a function"),
        ("WithLambda", r"param_groups\[0\]\['schedules'\]\[1\] is a function"),
        ("WithObject", r"state\[0\]\['history'\] is a History"),
    ],
)
def test_state_that_cannot_be_restored_is_named(name, entry, tmp_path):
    config = run_of(OWN + name)
    with pytest.raises(UserError, match=f"^the optimizer's state cannot be restored: {entry}$"):
        start(config, tmp_path)
    assert not list(tmp_path.rglob("*.pt*"))


def test_state_without_groups_is_named(tmp_path):
    sentence = "^the run's state cannot be restored: the groups of optimizer are not those of this "
    with pytest.raises(UserError, match=sentence):
        start(run_of(OWN + "WithOwnState"), tmp_path)


def test_rates_by_group_resume_bit_for_bit(tmp_path):
    config = run_of(OWN + "HalfRate", epochs=4)
    start(config, tmp_path / "straight")
    begin(config, tmp_path)
    assert start(config, tmp_path) == []
    assert numbers(tmp_path, config) == numbers(tmp_path / "straight", config)


# --- what is not a file ---------------------------------------------------------------------------


A_FOLDER = damage.SPECIAL["a folder"]
NOT_FILES = pytest.mark.parametrize(
    "change", [damage.SPECIAL[name] for name in damage.ENDLESS], ids=damage.ENDLESS
)


@NOT_FILES
def test_a_checkpoint_that_is_not_a_file(change, half_done, straight):
    change(half_done / "last.pt")
    is_refused(half_done, straight)


@NOT_FILES
def test_no_checkpoint_is_a_file(change, half_done, straight, tmp_path):
    for name in ("last.pt", "previous.pt"):
        change(half_done / name)
    messages = start(run_of(), tmp_path)
    assert [m.endswith("the run starts again") for m in messages] == [True, True]
    assert from_epoch(tmp_path, run_of()) == 0
    assert numbers(tmp_path, run_of()) == straight


def test_a_folder_as_the_checkpoint_before(half_done, straight, tmp_path):
    """Also beside one that was set aside already."""
    A_FOLDER(half_done / "previous.pt")
    A_FOLDER(half_done / "previous.pt.damaged")
    assert start(run_of(), tmp_path) == []
    assert numbers(tmp_path, run_of()) == straight


@NOT_FILES
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_text_that_is_not_a_file(change, name, half_done, tmp_path):
    change(half_done / name)
    with pytest.raises(UserError, match=f"{name} cannot be read: {name} is (not a reg|too large)"):
        start(run_of(), tmp_path)


@NOT_FILES
@pytest.mark.parametrize("name", ["metrics.jsonl", "times.jsonl", "env.json"])
def test_a_list_that_is_not_a_file_is_replaced(change, name, half_done, straight, tmp_path):
    change(half_done / name)
    if change is A_FOLDER and name == "env.json":
        with pytest.raises(UserError, match="cannot be written: Is a directory"):
            start(run_of(), tmp_path)
        return
    assert start(run_of(), tmp_path) == []
    assert numbers(tmp_path, run_of()) == straight


@NOT_FILES
@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl"])
def test_a_report_of_what_is_not_a_file(change, name, half_done):
    change(half_done / name)
    records, complaints = read_runs([half_done])
    assert not records
    assert len(complaints) == 1
    assert f"{name} is " in complaints[0]


@NOT_FILES
def test_a_picture_that_is_not_a_file_is_not_shown(change, half_done):
    (half_done / "pictures").mkdir()
    change(half_done / "pictures" / "epoch-0001.png")
    [record], _ = read_runs([half_done])
    assert last_picture(record) == ("", "")


@NOT_FILES
@pytest.mark.parametrize("name", ["times.jsonl", "env.json", "failure.json"])
def test_a_report_without_what_it_can_do_without(change, name, half_done):
    change(half_done / name)
    records, complaints = read_runs([half_done])
    assert len(records) == 1
    assert not complaints
