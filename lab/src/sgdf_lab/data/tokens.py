"""A corpus as a file of tokens: made once, mapped into memory, and checked by its hash."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.dataset import data_folder, known
from sgdf_lab.data.tokenizer import NotUtf8, Tokenizer, end_of_line, start_of_character
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.files import read_text, replacing, write_atomically

VALIDATION = 0.05  # the last part of a corpus, up to a line
READ = 1 << 22  # bytes at once


@dataclass(frozen=True)
class Tokens:
    """A corpus in tokens: what is trained on, and the last part, for validation and test."""

    train: NDArray[Any]
    validation: NDArray[Any]
    vocabulary: int
    validation_bytes: int
    digest: str  # of text and tokenizer
    source: str
    test: NDArray[Any] | None = None

    @property
    def bytes_per_token(self) -> float:
        """The average over the text that is held out."""
        test = 0 if self.test is None else len(self.test)
        return self.validation_bytes / (len(self.validation) + test)

    def with_test(self) -> "Tokens":
        """The second half of the validation text for a test: the first chooses the settings."""
        half = len(self.validation) // 2
        return replace(self, validation=self.validation[:half], test=self.validation[half:])


def split_of(text: NDArray[np.uint8]) -> int:
    """Where the validation text begins: 95 % of the bytes, moved to the next line.

    The same bytes are held out for every tokenizer, so bits per byte can be compared.
    """
    at = len(text) - int(len(text) * VALIDATION)
    cut = end_of_line(text, at)
    if cut <= (at + len(text)) // 2:
        return cut
    return start_of_character(text, at)  # the line is too long: it would leave too little


def tokens_of_text(text: NDArray[np.uint8], tokenizer: Tokenizer, source: str) -> Tokens:
    """Tokens of a text in memory."""
    cut = split_of(text)
    parts = [join(tokenizer.encode(part), tokenizer) for part in (text[:cut], text[cut:])]
    digest = digest_with(tokenizer.digest, hashlib.sha256(text.data).hexdigest())
    return Tokens(parts[0], parts[1], tokenizer.vocabulary, len(text) - cut, digest, source)


def join(parts: Iterable[NDArray[Any]], tokenizer: Tokenizer) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, tokenizer.dtype), *parts])


def digest_with(tokenizer: str, digest: str) -> str:
    """The hash of a corpus and of the tokenizer's file; or of the corpus only, if there is none."""
    both = f"{digest} {tokenizer}".encode()
    return hashlib.sha256(both).hexdigest() if tokenizer else digest


# --- from files ---------------------------------------------------------------------------------


def tokens_of_files(files: Sequence[Path], tokenizer: Tokenizer, source: str) -> Tokens:
    """Tokens of the files, one after the other, through a token file in the data folder.

    The name of the token file has the hash of the corpus in it: a changed corpus makes another.
    """
    digest = hash_of(files)
    try:
        text = mapped_text(files, digest)
        if tokenizer.encoder is None:
            cut = split_of(text)
            return Tokens(text[:cut], text[cut:], 256, len(text) - cut, digest, source)
        return encoded(text, tokenizer, digest_with(tokenizer.digest, digest), source)
    except NotUtf8 as error:
        path, position = file_at(files, error.position)
        raise UserError(
            f"{path} is not UTF-8 at byte {position}, which a tokenizer needs: convert the file, "
            "or leave tokenizer out to train on bytes"
        ) from None
    except OSError as error:
        where = error.filename or token_folder()
        raise UserError(
            f"the token file cannot be written: {where}: {error.strerror}; set SGDF_DATA to a "
            "folder that can be written to"
        ) from None


def token_folder() -> Path:
    return data_folder(None) / "tokens"


def hash_of(files: Sequence[Path]) -> str:
    checksum = hashlib.sha256()
    for path in files:
        for block in blocks_of(path):
            checksum.update(block)
    return checksum.hexdigest()


def known_hash_of(files: Sequence[Path]) -> str:
    """The same, read once in a process."""
    return known("text", [("", path) for path in files], lambda: hash_of(files))


def blocks_of(path: Path) -> Iterable[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(READ):
                yield block
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def mapped_text(files: Sequence[Path], digest: str) -> NDArray[np.uint8]:
    """All bytes of the corpus, in one file that is mapped into memory."""
    path = token_folder() / f"{short_name(files[0])}-{digest[:16]}.u8"
    if not is_intact(path, digest):
        path.parent.mkdir(parents=True, exist_ok=True)
        checksum = hashlib.sha256()
        with replacing(path) as file:
            for block in (block for source in files for block in blocks_of(source)):
                checksum.update(block)
                file.write(block)
        if checksum.hexdigest() != digest:
            path.unlink()
            raise UserError(f"{files[0]} changed while it was read: run the same command again")
    return np.memmap(path, dtype=np.uint8, mode="c")


def short_name(path: Path) -> str:
    return re.sub(r"[^\w.-]", "_", path.stem)[:60]


def is_intact(path: Path, digest: str) -> bool:
    return path.is_file() and hash_of([path]) == digest


def file_at(files: Sequence[Path], position: int) -> tuple[Path, int]:
    """The file that holds this byte of the corpus, and where."""
    for path in files:
        size = path.stat().st_size
        if position < size:
            break
        position -= size
    return path, position


# --- with a tokenizer ---------------------------------------------------------------------------


def encoded(text: NDArray[np.uint8], tokenizer: Tokenizer, digest: str, source: str) -> Tokens:
    """Tokens of a corpus by a tokenizer file: encoded once, since that takes long."""
    dtype = np.dtype(tokenizer.dtype)
    path = token_folder() / f"{short_name(Path(tokenizer.name))}-{digest[:16]}.{dtype.str[1:]}"
    facts_path = path.with_name(f"{path.name}.json")
    facts = read_facts(facts_path)
    cut = split_of(text)
    if facts is None or not is_intact(path, facts["sha256"]):
        counts, checksum = [], hashlib.sha256()
        with replacing(path) as file:
            for begin, part in ((0, text[:cut]), (cut, text[cut:])):
                counts.append(0)
                for tokens in tokenizer.encode(part, begin):
                    counts[-1] += len(tokens)
                    checksum.update(tokens.data)
                    file.write(tokens.data)
        facts = {"train": counts[0], "sha256": checksum.hexdigest()}
        written = {**facts, "check": check_of(counts[0], facts["sha256"])}
        write_atomically(facts_path, json.dumps(written) + "\n")
    tokens = (
        np.memmap(path, dtype=dtype, mode="c") if path.stat().st_size else np.zeros(0, dtype=dtype)
    )
    train, validation = tokens[: facts["train"]], tokens[facts["train"] :]
    return Tokens(train, validation, tokenizer.vocabulary, len(text) - cut, digest, source)


def check_of(train: int, sha256: str) -> str:
    """A hash of what decides: one wrong digit of `train` would train on the validation text."""
    return hashlib.sha256(f"{train} {sha256}".encode()).hexdigest()


def read_facts(path: Path) -> dict[str, Any] | None:
    """The number of training tokens and the hash of the token file, if they are as written."""
    try:
        written = json.loads(read_text(path))
        train, sha256 = int(written["train"]), str(written["sha256"])
        is_intact = written["check"] == check_of(train, sha256)
        return {"train": train, "sha256": sha256} if is_intact else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
