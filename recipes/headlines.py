"""The headline models: those whose cards are in ``model_cards``, each with the reason why a reader could want it."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from .lib.blocks import read
from .lib.card import Card


class Headline(NamedTuple):
    """One model.

    Attributes:
        recipe: name of the recipe's folder.
        result: name of a summary in the recipe's ``results``.
        run: name of the run; the card is of the first seed.
        reason: why it is a headline.
    """

    recipe: str
    result: str
    run: str
    reason: str


HEADLINES = (
    Headline("inflection", "english_verbs", "entmax15", "the model of `make demo`, all of whose forms can be listed"),
    Headline("inflection", "english_verbs", "alpha_relu", "the head that needs no sorting and no threshold search"),
    Headline(
        "inflection_grid",
        "eight_languages_high_longer",
        "output-1.5-attention-1",
        "the most accurate sparse model of several languages",
    ),
    Headline("translation", "multi30k", "csparsemax-predicted", "attention bounded by predicted fertilities"),
    Headline(
        "translation_sweep",
        "multi30k_converged",
        "output-1.33",
        "a translator from scratch, ahead of softmax's in BLEU",
    ),
    Headline(
        "language_modelling",
        "wikitext2",
        "entmax13",
        "the best fit among sparse language models that learn by their own loss alone",
    ),
    Headline("language_modelling", "wikitext2", "entmax15-lora", "a softmax model made sparse by an adapter alone"),
    Headline("conversion", "wikitext2_multi30k", "gpt2-head-anneal", "a decoder converted at the head"),
    Headline("conversion", "wikitext2_multi30k", "bart-both-anneal", "an encoder-decoder converted everywhere"),
    Headline("multilabel", "documents", "classifier-sparsehourglass+hinge", "a classifier without a threshold"),
    Headline(
        "pretrained", "pretrained", "smollm2-attention-fifth", "a pretrained language model, calibrated in attention"
    ),
    Headline("pretrained", "pretrained", "smollm2-coverage", "a pretrained head whose support promises a coverage"),
    Headline("pretrained", "pretrained", "whisper-trained", "a speech recogniser, sparse in attention and head"),
    Headline("pretrained", "pretrained", "rxnmapper-attention", "a pretrained model of reactions, cross-validated"),
    Headline(
        "length_generalisation",
        "copy_reverse_recall",
        "copy-adaptive-scalable-entmax15",
        "attention that stays sharp on sequences far longer than those of training",
    ),
)


def headline_card(headline: Headline) -> Card:
    """The model card of a headline, made from the committed summary."""
    records = read(f"recipes/{headline.recipe}/results/{headline.result}.json")["runs"]
    record = next(record for record in records if record["run"] == headline.run)
    return import_module(f"recipes.{headline.recipe}.report").card(record, records)


def headline_cards() -> list[Card]:
    """All cards of ``model_cards``."""
    return [headline_card(headline) for headline in HEADLINES]
