"""Language modelling: a network learns to predict the next token of a text; losses in nats."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sgdf_lab import data, tasks
from sgdf_lab.data.corpora import TEXT, TextDataset, own_files
from sgdf_lab.data.synthetic import make_text
from sgdf_lab.data.tokenizer import BYTES, Tokenizer, check_file, digest_of, load_tokenizer
from sgdf_lab.data.tokens import (
    VALIDATION,
    Tokens,
    digest_with,
    known_hash_of,
    tokens_of_files,
    tokens_of_text,
)
from sgdf_lab.models import build_language_model
from sgdf_lab.registry.models import context_of
from sgdf_lab.support.errors import UserError
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team, unsharded
from sgdf_lab.training.loop import HessianTrainer, Trainer
from sgdf_lab.training.tokens import EvaluationWindows, TokenBatches

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

LONGEST_CONTEXT = 1 << 20


def identify(options: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    """The user's own text and tokenizer: two of them never have runs of the same name."""
    files = own_files(as_path("corpus", options.get("corpus", "")), TEXT, folder)
    digest = digest_with(tokenizer_digest(options), known_hash_of(files))
    return {"fingerprint": digest[:16]}


def identify_tokenizer(options: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    """The user's tokenizer for a published text; nothing for bytes."""
    digest = tokenizer_digest(options)
    return {"fingerprint": digest[:16]} if digest else {}


def tokenizer_digest(options: Mapping[str, Any]) -> str:
    return digest_of(as_path("tokenizer", options.get("tokenizer", BYTES)))


def as_path(name: str, value: Any) -> str:
    """The value of an option that is a path; a `UserError` if it cannot be one."""
    if not isinstance(value, str) or "\0" in value:
        raise UserError(f"{name} is the path of a file, not {value!r}")
    return value


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if an option is wrong or the text is missing."""
    tasks.check_integers(config, eval_every=1, eval_tokens=1, test_tokens=0, context=0)
    if config.option("context") > LONGEST_CONTEXT:
        raise UserError(f"context is at most {LONGEST_CONTEXT:,}, not {config.option('context'):,}")
    if config.validation:
        raise UserError(
            f"{config.task} always holds out the last {VALIDATION:.0%} of the text: leave "
            "validation out"
        )
    name = as_path("tokenizer", config.option("tokenizer"))
    if name != BYTES:
        check_file(Path(name).expanduser())
    if config.data != "synthetic":
        check_data(config, find_files(config, data_dir), data_dir)


def check_data(config: "Config", files: Sequence[Path], data_dir: Path | None) -> None:
    """Refuse another text or tokenizer than those by which a run was named."""
    identify, known = config.task_definition.identify, config.option("fingerprint")
    assert identify is not None
    if known and identify(config.options, data_dir).get("fingerprint") != known:
        name = config.option("tokenizer")
        words = str(files[0]) if name == BYTES else f"{files[0]} or {name}"
        raise UserError(f"{words} does not hold the data of this run: it has changed")


def find_files(config: "Config", data_dir: Path | None) -> tuple[Path, ...]:
    """The files of the corpus: the user's own, or a published one in the data folder."""
    spec = data.find(config.task_definition.dataset)
    assert isinstance(spec, TextDataset)
    if "corpus" not in config.task_definition.options:
        return spec.find(data_dir)
    return own_files(as_path("corpus", config.option("corpus")), spec, data_dir)


def load_tokens(config: "Config", data_dir: Path | None, tokenizer: Tokenizer) -> Tokens:
    if config.data == "synthetic":
        return tokens_of_text(make_text(), tokenizer, "synthetic text")
    files = find_files(config, data_dir)
    source = str(files[0]) if len(files) == 1 else f"{len(files)} files like {files[0]}"
    return tokens_of_files(files, tokenizer, source)


def check_length(tokens: Tokens, context: int) -> None:
    """Every part has to hold a window and the token after it."""
    parts = {"training": tokens.train, "validation": tokens.validation, "test": tokens.test}
    for words, part in parts.items():
        if part is not None and len(part) <= context:
            raise UserError(
                f"the {words} part of {tokens.source} has {len(part):,} tokens, too few for a "
                f"context of {context:,}: give more text, or a shorter context"
            )


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = SINGLE_PROCESS,
) -> Trainer:
    check(config, data_dir)
    tokens = load_tokens(config, data_dir, load_tokenizer(config.option("tokenizer")))
    if config.option("test_tokens"):
        tokens = tokens.with_test()
    context = config.option("context") or context_of(config.model)
    check_length(tokens, context)
    with tasks.weights_by_seed(config):
        model = build_language_model(config.model, vocabulary=tokens.vocabulary, context=context)
    batches = TokenBatches(
        tokens,
        device,
        seed=config.seed,
        steps=config.option("eval_every"),
        batch=config.batch,
        context=context,
    )
    evaluation = EvaluationWindows(
        tokens.validation, device, context=context, most=config.option("eval_tokens")
    )
    trainer = LanguageModel(config, model.to(device), batches, device, compile=compile, team=team)
    trainer.evaluation = evaluation
    if tokens.test is not None:
        trainer.test = EvaluationWindows(
            tokens.test, device, context=context, most=config.option("test_tokens")
        )
    trainer.bytes_per_token = tokens.bytes_per_token
    trainer.notes = (note(config, tokens, evaluation),)
    return trainer


def note(config: "Config", tokens: Tokens, evaluation: EvaluationWindows) -> str:
    """What is trained and evaluated on, in a sentence."""
    tested = "" if tokens.test is None else " and the test"
    held_out = len(tokens.validation) + (0 if tokens.test is None else len(tokens.test))
    return (
        f"{config.task}: {len(tokens.train):,} training tokens of {tokens.source}; its last "
        f"{VALIDATION:.0%}, {held_out:,} tokens, are for validation{tested}, evaluated on "
        f"{len(evaluation):,} windows of {evaluation.context}"
    )


class LanguageModel(HessianTrainer):
    """Learns to predict the next token by cross entropy. An epoch of the loop is the steps
    between two evaluations."""

    batches: TokenBatches
    evaluation: EvaluationWindows
    bytes_per_token = 1.0
    test: EvaluationWindows | None = None  # looked at once, after the last step

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Sum over the windows of the mean loss of their tokens."""
        tokens, following = self.batches.take(position, size)
        loss = self._token_losses(tokens, following) / self.batches.context
        return loss, torch.zeros_like(self.sums.correct)

    def _token_losses(self, tokens: Tensor, following: Tensor) -> Tensor:
        with self._autocast():
            logits = self.model(tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten(), reduction="sum")

    def _labels_in(self, size: int) -> int:
        return size * self.batches.context

    # --- evaluation -----------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, tuple[Tensor, float]]:
        self.model.eval()
        with unsharded(self.model):
            work = functools.partial(self._evaluate_on, self.evaluation)
            loss = self.graphs.run("validation", work) if self.graphs else work()
            result = {"val_loss": (loss, tokens_in(self.evaluation))}
            if self.test is not None and self.steps_done == self.total:
                result["test_loss"] = self._evaluate_on(self.test), tokens_in(self.test)
        self.model.train()
        return result

    def evaluated(self) -> int:
        return len(self.evaluation)

    @torch.no_grad()
    def _evaluate_on(self, evaluation: EvaluationWindows) -> Tensor:
        loss = torch.zeros((), device=self.device, dtype=torch.float64)
        for tokens, following in evaluation.batches(*self.team.share(len(evaluation))):
            loss += self._token_losses(tokens, following)
        return loss

    def metrics(self) -> dict[str, Any]:
        result = super().metrics()
        result["bits_per_byte"] = result["val_loss"] / self.bytes_per_token / math.log(2)
        result["step"] = self.steps_done
        result["tokens"] = self.evaluations * len(self.batches) * self.batches.context
        return result


def tokens_in(evaluation: EvaluationWindows) -> float:
    return float(len(evaluation) * evaluation.context)
