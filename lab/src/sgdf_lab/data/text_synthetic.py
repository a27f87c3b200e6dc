"""Text of a small grammar: something to learn for a language model, without a download."""

import numpy as np
from numpy.typing import NDArray

LENGTH = 1 << 17  # bytes
SEED = 20260101

SUBJECTS = ("the fox", "a heron", "the miller", "my sister", "an old clock", "the river", "nobody")
VERBS = ("sees", "follows", "forgets", "carries", "wakes", "draws", "waits for")
OBJECTS = ("the moon", "a letter", "three stones", "the garden", "her shadow", "a small boat")
PLACES = ("in the rain", "near the mill", "at night", "behind the hill", "without a sound")
ENDINGS = (". ", ".\n", "; ", ", and then ")
SLOTS = (SUBJECTS, VERBS, OBJECTS, PLACES, ENDINGS)


def make_text(length: int = LENGTH) -> NDArray[np.uint8]:
    """The first `length` bytes of an endless text.

    The words come from the raw stream of PCG64: every machine makes the same text. A verb depends
    on the subject and the place on the object, so that a longer memory predicts better.

    >>> bytes(make_text(40)).decode()
    'nobody waits for three stones behind the'
    """
    stream = np.random.PCG64(SEED)
    parts: list[str] = []
    size = 0
    while size < length:
        draws = [int(number >> np.uint64(8)) for number in stream.random_raw(len(SLOTS))]
        subject, verb, thing, place, ending = draws
        chosen = (
            SUBJECTS[subject % len(SUBJECTS)],
            VERBS[(subject + verb % 2) % len(VERBS)],  # one of two that this subject takes
            OBJECTS[thing % len(OBJECTS)],
            PLACES[(thing % len(OBJECTS) + place % 2) % len(PLACES)],
        )
        sentence = " ".join(chosen) + ENDINGS[ending % len(ENDINGS)]
        parts.append(sentence)
        size += len(sentence)
    return np.frombuffer("".join(parts).encode()[:length], dtype=np.uint8)
