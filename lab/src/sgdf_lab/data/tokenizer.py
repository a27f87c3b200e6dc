"""How text becomes tokens: its bytes, or the pieces of a tokenizer file of the user."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.support.errors import UserError, reason_of

CHUNK = 1 << 20  # bytes that are encoded at once
BYTES = "bytes"


@dataclass(frozen=True)
class Tokenizer:
    """Bytes, or the `tokenizer.json` of Hugging Face that `encoder` was read from."""

    name: str = BYTES
    vocabulary: int = 256
    digest: str = ""  # of the file
    encoder: Any = None

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest type that holds every token."""
        if self.vocabulary <= 1 << 8:
            return np.uint8
        return np.uint16 if self.vocabulary <= 1 << 16 else np.uint32

    def encode(self, text: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
        """The tokens, part by part.

        A part ends after a line: a token that spans two lines may be cut there, so that a corpus
        of any size can be encoded.
        """
        if self.encoder is None:
            yield text
            return
        start = 0
        while start < len(text):
            end = end_of_line(text, min(start + CHUNK, len(text)))
            try:
                words = bytes(text[start:end]).decode()
            except UnicodeDecodeError as error:
                raise NotUtf8(start + error.start) from None
            ids = self.encoder.encode(words, add_special_tokens=False).ids
            yield np.array(ids, dtype=self.dtype)
            start = end


class NotUtf8(Exception):
    """A byte of the corpus that is not UTF-8, at `position`."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def end_of_line(text: NDArray[np.uint8], at: int) -> int:
    """The first position from `at` on that follows a line break, or else begins a character."""
    if at >= len(text):
        return len(text)
    near = text[max(at - 1, 0) : at + CHUNK]
    breaks = np.flatnonzero(near == ord("\n"))
    if len(breaks):
        return max(at - 1, 0) + int(breaks[0]) + 1
    return start_of_character(text, at)


def start_of_character(text: NDArray[np.uint8], at: int) -> int:
    """The first position from `at` on where a character of UTF-8 begins; of other text, `at`."""
    for start in range(at, min(at + 4, len(text))):
        if text[start] & 0xC0 != 0x80:  # not a later byte of a character
            return start
    return at


def load_tokenizer(name: str) -> Tokenizer:
    """Bytes, or a tokenizer from the file of that name; `UserError` if it cannot be read."""
    if name == BYTES:
        return Tokenizer()
    path = Path(name).expanduser()
    content = check_file(path)
    try:
        import tokenizers  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            f"tokenizer={name} needs the package tokenizers: pip install tokenizers, or leave "
            "tokenizer out to train on bytes"
        ) from None
    try:
        encoder = tokenizers.Tokenizer.from_str(content.decode())
        encoder.no_truncation()  # a file may ask for it, for inputs of one sentence
        encoder.no_padding()
        vocabulary = 1 + max(encoder.get_vocab().values(), default=0)  # numbers may be left out
    except Exception as error:  # the package raises plain exceptions
        raise UserError(f"{path} is not a tokenizer that can be used: {reason_of(error)}") from None
    return Tokenizer(str(path), vocabulary, hashlib.sha256(content).hexdigest(), encoder)


def digest_of(name: str) -> str:
    """The hash of a tokenizer's file; nothing for bytes."""
    content = b"" if name == BYTES else check_file(Path(name).expanduser())
    return hashlib.sha256(content).hexdigest() if content else ""


def check_file(path: Path) -> bytes:
    """The content of a tokenizer file, whose format is known."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"there is no file {path}: tokenizer is {BYTES}, or a tokenizer.json of Hugging Face"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise UserError(
            f"{path} has an unknown format: a tokenizer is a tokenizer.json of Hugging Face, which "
            "holds a JSON object with the key model"
        )
    return content
