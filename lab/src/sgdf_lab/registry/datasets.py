"""The datasets by name, in the order of lists, and where each is described."""

DATASETS = {
    "digits": "sgdf_lab.data.digits:DATASET",
    "fashion-mnist": "sgdf_lab.data.fashion_mnist:DATASET",
    "cifar10": "sgdf_lab.data.cifar:CIFAR10",
    "cifar100": "sgdf_lab.data.cifar:CIFAR100",
    "imagenet": "sgdf_lab.paper.photos.datasets:IMAGENET",
    "pets": "sgdf_lab.paper.photos.datasets:PETS",
    "flowers102": "sgdf_lab.paper.photos.datasets:FLOWERS102",
    "food101": "sgdf_lab.paper.photos.datasets:FOOD101",
    "voc": "sgdf_lab.paper.detection.voc:DATASET",
    "text": "sgdf_lab.data.corpora:TEXT",
    "enwik8": "sgdf_lab.data.corpora:ENWIK8",
    "text8": "sgdf_lab.data.corpora:TEXT8",
    "encyclopedia": "sgdf_lab.data.corpora:ENCYCLOPEDIA",
    "books": "sgdf_lab.data.corpora:BOOKS",
}
