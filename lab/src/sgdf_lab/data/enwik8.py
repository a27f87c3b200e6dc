"""enwik8: the first 100 million bytes of an English Wikipedia, as XML."""

from sgdf_lab.data.corpora import TextDataset
from sgdf_lab.data.fetch import Remote

DATASET = TextDataset(
    name="enwik8",
    order=21,
    train=95_000_000,  # the last 5 % are for validation
    test=5_000_000,
    remote=Remote("https://mattmahoney.net/dc/enwik8.zip", ""),
    md5="a1fa5ffddb56f4953e226637dabbb36a",
)
