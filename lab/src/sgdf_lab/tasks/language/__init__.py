"""Language modelling: a decoder-only transformer predicts the next token of a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgdf_lab.data import text, tokens
from sgdf_lab.data.corpora import own_files
from sgdf_lab.data.tokenizer import BYTES, digest_of
from sgdf_lab.support.errors import UserError


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
