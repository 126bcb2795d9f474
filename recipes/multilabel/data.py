"""Multilabel data: documents drawn word by word, and Mulan's data sets."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from scipy.io import arff
from sklearn.datasets import make_multilabel_classification
from torch import Tensor

WORDS, LABELS = 10, 10
FEWEST = 5  # rows of which half train, a fifth validate and the rest test
MULAN_LABEL = "{http://mulan.sourceforge.net/labels}label"


class Part(NamedTuple):
    """Features (rows, F), float32, and labels (rows, K), bool, at least one in each row."""

    features: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> Part:
        """Some of the rows."""
        return Part(self.features[rows], self.labels[rows])


class Problem(NamedTuple):
    """Rows for training, for choosing settings, and for testing."""

    train: Part
    validation: Part
    test: Part


def documents(label_counts: range, length: int, rows: int = 5000, seed: int = 0) -> Part:
    """Documents as word counts, drawn from the distributions over words of their labels.

    Args:
        label_counts: numbers of labels, all equally likely.
        length: mean number of words, drawn from a Poisson distribution.
        rows: number of documents.
        seed: of all draws.

    Source: Laha et al. 2018, Appendix A.6: "We draw number of true labels from either a discrete uniform distribution.
    Then we sample labels without replacement and sample number of words (document length) from the mixture of sampled
    label-specific distribution over words." scikit-learn makes those distributions. The copy at hand lost the sizes of
    vocabulary and label set; 10 and 10 are this recipe's.
    """
    *_, word_given_label = make_multilabel_classification(
        n_samples=1, n_features=WORDS, n_classes=LABELS, return_distributions=True, random_state=seed
    )
    generator = np.random.default_rng(seed)
    count = generator.choice(np.array(label_counts), size=rows)
    order = generator.random((rows, LABELS)).argsort(axis=1)
    labels = order < count[:, None]
    mixture = labels @ word_given_label.T / count[:, None]
    words = generator.multinomial(np.maximum(generator.poisson(length, rows), 1), mixture)
    return Part(torch.from_numpy(words).float(), torch.from_numpy(labels))


def sample(rows: int) -> Part:
    """Multilabel rows that scikit-learn makes, with twenty features and five labels; each row has a label."""
    features, labels = make_multilabel_classification(n_samples=rows, allow_unlabeled=False, random_state=0)
    return Part(torch.from_numpy(features).float(), torch.from_numpy(labels) > 0)


def divided(part: Part, seed: int = 0) -> Problem:
    """Split rows at random: half for training, a fifth for choosing settings, three tenths for testing (Appendix A.6).

    Features are scaled to mean 0 and standard deviation 1 over the training rows.

    Raises:
        ValueError: a part would have no row.
    """
    if len(part.labels) < FEWEST:
        raise ValueError(f"{len(part.labels)} rows with a label are too few to divide; {FEWEST} are needed")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(part.labels), generator=generator)
    first, second = len(order) // 2, len(order) * 7 // 10
    train = part.take(order[:first])
    mean, spread = train.features.mean(0), train.features.std(0)
    scaled = Part((part.features - mean) / torch.where(spread > 0, spread, 1.0), part.labels)
    return Problem(scaled.take(order[:first]), scaled.take(order[first:second]), scaled.take(order[second:]))


def read_mulan(path: Path) -> Part:
    """Rows of an ARFF file that have a label; names of the labels are read from the XML file beside it.

    ``birds-train.arff`` goes with ``birds.xml``.

    Raises:
        ValueError: the XML file is missing or malformed, a label is no attribute, the ARFF file is not dense or has
            attributes that are no numbers, a value is missing, or no row has a label.
    """
    described = path.with_name(path.stem.removesuffix("-train").removesuffix("-test") + ".xml")
    if not described.is_file():
        raise ValueError(f"{path}: the names of its labels belong in {described}, which does not exist")
    try:
        names = [label.get("name", "") for label in ElementTree.parse(described).iter(MULAN_LABEL)]
    except ElementTree.ParseError as error:
        raise ValueError(f"{described} is no XML ({error})") from error
    try:
        rows, meta = arff.loadarff(path)
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"{path} cannot be read as dense ARFF of numbers ({error})") from error
    column = {name.replace("\\", ""): name for name in meta.names()}  # quotes in names come escaped
    missing = [name for name in names if name not in column]
    if missing or not names:
        raise ValueError(f"{path}: {described} names the label {missing[0] if missing else ''!r}, which it lacks")
    try:
        table = {name: np.array([float(value) for value in rows[raw]]) for name, raw in column.items()}
    except ValueError as error:
        raise ValueError(f"{path}: every attribute must be a number ({error})") from error
    if unknown := [name for name, values in table.items() if not np.isfinite(values).all()]:
        raise ValueError(f"{path}: values of {unknown[0]!r} are missing or infinite; leave these rows out")
    labels = torch.from_numpy(np.stack([table.pop(name) for name in names], axis=1) > 0)
    kept = labels.any(1)  # "we consider only those examples with at least one label", Section 5.1.2
    if not kept.any():
        raise ValueError(f"{path}: no row has a label")
    features = torch.from_numpy(np.stack(list(table.values()), axis=1)).float()
    return Part(features, labels).take(kept)
