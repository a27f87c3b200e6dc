"""How text becomes tokens: its bytes, or the pieces of a tokenizer file of the user."""

import hashlib
import importlib.util
import json
import os
import select
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.tokenizer_process import FAILED
from sgdf_lab.support.errors import UserError, one_line
from sgdf_lab.support.files import open_regular

CHUNK = 1 << 20  # bytes that are encoded at once
LARGEST = 1 << 27  # bytes of a tokenizer file; the largest known have a quarter
MOST_TOKENS = 1 << 22
MEMORY = 4 << 30  # bytes that encoding may take
PATIENCE = 600  # seconds for a chunk, which usually takes one
BYTES = "bytes"


@dataclass(frozen=True)
class Tokenizer:
    """Bytes, or the `tokenizer.json` of Hugging Face that `encoder` has read."""

    name: str = BYTES
    vocabulary: int = 256
    digest: str = ""  # of the file
    encoder: "Encoder | None" = None

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest type that holds every token."""
        if self.vocabulary <= 1 << 8:
            return np.uint8
        return np.uint16 if self.vocabulary <= 1 << 16 else np.uint32

    def encode(self, text: NDArray[np.uint8], begin: int = 0) -> Iterator[NDArray[Any]]:
        """The tokens, part by part, of a text that begins at this byte of the corpus.

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
                raise NotUtf8(begin + start + error.start) from None
            ids = self.encoder.encode(words)
            if len(ids) and ids.max() >= self.vocabulary:
                raise UserError(f"{self.name} makes tokens that are not in its vocabulary")
            yield ids.astype(self.dtype)
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
    if importlib.util.find_spec("tokenizers") is None:
        raise UserError(
            f"tokenizer={name} needs the package tokenizers: pip install tokenizers, or leave "
            "tokenizer out to train on bytes"
        )
    encoder = Encoder(path, content)
    if encoder.vocabulary > MOST_TOKENS:
        raise UserError(
            f"{path} has tokens up to number {encoder.vocabulary - 1:,}: at most {MOST_TOKENS:,} "
            "can be trained on"
        )
    return Tokenizer(str(path), encoder.vocabulary, hashlib.sha256(content).hexdigest(), encoder)


class Encoder:
    """A tokenizer file in a process of its own; see `tokenizer_process`."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        script = Path(__file__).with_name("tokenizer_process.py")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(MEMORY)],  # -P: its folder hides no module
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
        )
        weakref.finalize(self, end, self.process)
        assert self.process.stdout
        self.answers = self.process.stdout.fileno()  # unbuffered, as `poll` sees it
        self.poll = select.poll()
        self.poll.register(self.answers, select.POLLIN)
        self.vocabulary = 1 + int(self._ask(content))

    def encode(self, text: str) -> NDArray[np.uint32]:
        return np.frombuffer(self._ask(text.encode()), dtype="<u4")

    def _ask(self, content: bytes) -> bytes:
        assert self.process.stdin
        try:
            self.process.stdin.write(struct.pack("<Q", len(content)) + content)
            self.process.stdin.flush()
            if (size := self._receive_size()) != FAILED:
                return self._receive(size)
            why = one_line(self._receive(self._receive_size()).decode(errors="replace"))
        except (EOFError, BrokenPipeError):
            code = self.process.wait()
            why = f"it ended its process ({signal.Signals(-code).name if code < 0 else code})"
        raise UserError(f"{self.path} is not a tokenizer that can be used: {why}")

    def _receive_size(self) -> int:
        return int.from_bytes(self._receive(8), "little")

    def _receive(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            if not self.poll.poll(1000 * PATIENCE):
                raise UserError(f"{self.path} encodes no part of a text within {PATIENCE} seconds")
            part = os.read(self.answers, size - len(content))
            if not part:
                raise EOFError
            content += part
        return bytes(content)


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


def digest_of(name: str) -> str:
    """The hash of a tokenizer's file; nothing for bytes."""
    content = b"" if name == BYTES else check_file(Path(name).expanduser())
    return hashlib.sha256(content).hexdigest() if content else ""


def check_file(path: Path) -> bytes:
    """The content of a tokenizer file, whose format is known."""
    try:
        with open_regular(path, limit=LARGEST) as file:
            content = file.read()
    except FileNotFoundError:
        raise UserError(
            f"there is no file {path}: tokenizer is {BYTES}, or a tokenizer.json of Hugging Face"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
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
