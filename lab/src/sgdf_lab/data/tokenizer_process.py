"""A tokenizer of Hugging Face in a process of its own, which a hostile file may bring down.

Run as a script with a limit of its memory. Standard input has the file's content, then texts, each
after its length in eight bytes; the answers are on standard output. A file can make the package
panic, or ask it for more memory than there is, which ends the process: the run that asked is told
so. Imports nothing of the lab, since it starts with every run.
"""

import contextlib
import json
import os
import resource
import struct
import sys
from typing import Any, BinaryIO

FAILED = (1 << 64) - 1  # instead of a length: an error follows


def read(file: BinaryIO) -> bytes | None:
    head = file.read(8)
    return file.read(*struct.unpack("<Q", head)) if len(head) == 8 else None


def answer(file: BinaryIO, content: bytes) -> None:
    file.write(struct.pack("<Q", len(content)) + content)
    file.flush()


def fail(file: BinaryIO, error: BaseException) -> None:
    file.write(struct.pack("<Q", FAILED))
    answer(file, (str(error) or type(error).__name__).encode(errors="replace"))


def load(content: bytes) -> Any:
    import tokenizers  # type: ignore[import-not-found]

    encoder = tokenizers.Tokenizer.from_str(content.decode())
    encoder.no_truncation()  # a file may ask for it, for inputs of one sentence
    encoder.no_padding()
    return encoder


def main() -> None:
    for limit, value in ((resource.RLIMIT_AS, int(sys.argv[1])), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is not an answer
    try:
        encoder = load(read(asked) or b"")
        # Numbers may be left out.
        largest = max(encoder.get_vocab().values(), default=0)
        answer(answers, json.dumps(largest).encode())
        while (text := read(asked)) is not None:
            ids = encoder.encode(text.decode(), add_special_tokens=False).ids
            answer(answers, struct.pack(f"<{len(ids)}I", *ids))
    except BaseException as error:  # a panic is none of Python's own
        fail(answers, error)


if __name__ == "__main__":
    main()
