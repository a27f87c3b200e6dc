"""The datasets by name, in the order of lists, and where each is described."""

DATASETS = {
    "digits": "sgdf_lab.data.digits:DATASET",
    "fashion-mnist": "sgdf_lab.data.fashion_mnist:DATASET",
    "cifar10": "sgdf_lab.data.cifar10:DATASET",
    "cifar100": "sgdf_lab.data.cifar100:DATASET",
    "imagenet": "sgdf_lab.data.imagenet:DATASET",
    "pets": "sgdf_lab.data.pets:DATASET",
    "flowers102": "sgdf_lab.data.flowers102:DATASET",
    "food101": "sgdf_lab.data.food101:DATASET",
    "voc": "sgdf_lab.data.voc:DATASET",
    "text": "sgdf_lab.data.text:DATASET",
    "enwik8": "sgdf_lab.data.enwik8:DATASET",
    "text8": "sgdf_lab.data.text8:DATASET",
}
