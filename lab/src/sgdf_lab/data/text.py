"""The user's own text: any file, or a folder of files."""

from sgdf_lab.data.corpora import TextDataset

DATASET = TextDataset(name="text", order=20, train=0, test=0)
