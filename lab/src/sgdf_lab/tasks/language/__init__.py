"""Language modelling: a decoder-only transformer predicts the next token of a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgdf_lab.data import text, tokens
from sgdf_lab.data.corpora import own_files
from sgdf_lab.data.tokenizer import BYTES, digest_of
from sgdf_lab.models.gpt import SIZES
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks.registry import Metric, Task

LOSS = Metric(
    "val_loss", "validation loss", unit="nats/token", lower_is_better=True, digits=3, grain=0.05
)
BITS = Metric("bits_per_byte", "bits per byte", unit="", lower_is_better=True, digits=3)


def path_in(options: Mapping[str, Any], name: str) -> str:
    """An option that is a path; a `UserError` if it cannot be one."""
    value = options[name]
    if not isinstance(value, str) or "\0" in value:
        raise UserError(f"{name} is the path of a file, not {value!r}")
    return value


def identify(options: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    """The user's own text and tokenizer: two of them never have runs of the same name."""
    files = own_files(path_in({"corpus": "", **options}, "corpus"), text.DATASET, folder)
    digest = tokens.digest_with(tokenizer_digest(options), tokens.known_hash_of(files))
    return {"fingerprint": digest[:16]}


def identify_tokenizer(options: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    """The user's tokenizer for a published text; nothing for bytes."""
    digest = tokenizer_digest(options)
    return {"fingerprint": digest[:16]} if digest else {}


def tokenizer_digest(options: Mapping[str, Any]) -> str:
    return digest_of(path_in({"tokenizer": BYTES, **options}, "tokenizer"))


def text_task(name: str, **options: str) -> Task:
    return Task(
        name,
        "gpt-11m",
        epochs=20,  # evaluations: 2000 steps
        batch=64,  # windows
        trainer=f"{__name__}.trainer",
        models=tuple(SIZES),
        of_paper=False,
        tokens_of={name: size.context for name, size in SIZES.items()},
        schedule="cosine",
        clip=1.0,
        metrics=(LOSS, BITS),
        options={
            "eval_every": 100,  # steps between evaluations
            "eval_tokens": 1 << 18,  # of the validation text
            "test_tokens": 0,  # of the second half of that text, for one test at the end
            "context": 0,  # tokens in a window; 0: the model's
            "tokenizer": BYTES,  # or a tokenizer.json
            "fingerprint": "",  # of the text and the tokenizer, if they are the user's
            **options,
        },
        places=("corpus", "tokenizer"),
        identify=identify if "corpus" in options else identify_tokenizer,
    )


TASKS = (text_task("text", corpus=""), text_task("enwik8"), text_task("text8"))
