"""Output for streams that cannot show every character."""

import io
import os

from sgdf_lab.cli.encoding import make_printable


def test_a_character_that_the_encoding_lacks_is_replaced():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    make_printable(stream)
    stream.write("1 ± 2 é")
    stream.flush()
    assert stream.buffer.getvalue() == b"1 +- 2 ?"


def test_a_file_that_became_a_pipe(tmp_path):
    """The stream was made for a file, which has positions; a pipe has none."""
    reading, writing = os.pipe()
    with open(tmp_path / "log", "w", encoding="ascii") as stream:
        os.dup2(writing, stream.fileno())
        os.close(writing)
        make_printable(stream)
        stream.write("1 ± 2")
    assert os.read(reading, 100) == b"1 +- 2"
    os.close(reading)
