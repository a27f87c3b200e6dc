"""text8: enwik8's articles as 100 million letters a to z and spaces."""

from sgdf_lab.data.corpora import TextDataset
from sgdf_lab.data.fetch import Remote

DATASET = TextDataset(
    name="text8",
    order=22,
    train=95_000_000,  # the last 5 % are for validation
    test=5_000_000,
    remote=Remote("https://mattmahoney.net/dc/text8.zip", ""),
    md5="3bea1919949baf155f99411df5fada7e",
)
