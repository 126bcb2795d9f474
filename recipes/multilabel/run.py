"""Multilabel classification with sparse distributions over labels: a label is on if its probability is not zero.

Four pairs of a map and a loss are compared: in linear models of documents drawn from label-specific distributions over
words, with varied numbers of labels and varied length; in linear models of a data set; and as the head of a
Transformers classifier.

The pairs, the made-up data and the measures are those of Laha et al. 2018, "On Controllable Sparse Alternatives to
Softmax", Sections 4 and 5.1 and Appendix A.6.

    python -m recipes.multilabel.run --list
    python -m recipes.multilabel.run --quick --only 'labels-2-*' 'classifier-*'
    python -m recipes.multilabel.run --only 'labels-*' 'range-*' 'words-*' --seeds 3
    python -m recipes.multilabel.run --only 'data-*' --data emotions-train.arff --out out/emotions   # with its XML
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

from ..lib.records import Figures
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from .classifier import LONGEST, fit_classifier
from .data import FEWEST, LABELS, Part, Problem, divided, documents, read_mulan, sample
from .model import PAIRS, fit_linear
from .report import card, condensed, report

MODELS = ("linear", "classifier")


@dataclasses.dataclass(frozen=True)
class Multilabel(Settings):
    """A pair, its data and its training."""

    pair: str = setting("softmax+log", "softmax+log, sparsemax+huber, sparsemax+hinge, sparsehourglass+hinge", "5.1")
    model: str = setting("linear", "linear", "5.1.1")
    documents: bool = setting(True, "made-up data; Mulan data", "5.1.1; 5.1.2")
    data: str = setting("", "birds, emotions, scene", "5.1.2")
    mean_labels: int = setting(5, "2 to 9, as far as our copy can be read", "5.1.1 (1)")
    spread: int = setting(1, "1; 0 to 4 with 5 labels on average", "5.1.1 (1); (2)")
    words: int = setting(2000, "200 to 2000", "5.1.1 (3)")
    rows: int = setting(5000)
    steps: int = setting(250)
    lr: float = setting(0.1)
    batch_size: int = setting(0)  # of the classifier; linear models see all rows at every step
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, pair=("", *PAIRS), model=MODELS)
        check_positive(self, "words", "rows", "steps", "lr", *(["batch_size"] if self.model == "classifier" else []))
        if not 0 <= self.spread < self.mean_labels <= LABELS:
            raise ValueError(
                f"mean_labels must be at most {LABELS}, and spread at least 0 and below mean_labels, were "
                f"{self.mean_labels} and {self.spread}"
            )


def runs() -> dict[str, Multilabel]:
    """All runs: every pair at each point of the three settings of Section 5.1.1, on a data set, in a classifier."""
    points = {f"labels-{mean}": Multilabel(mean_labels=mean) for mean in range(2, 10)}
    points |= {f"range-{spread}": Multilabel(spread=spread) for spread in range(5)}
    points |= {f"words-{words}": Multilabel(words=words) for words in (200, 500, 1000, 1500, 2000)}
    points["data"] = Multilabel(documents=False)
    points["classifier"] = Multilabel(
        model="classifier", mean_labels=2, words=LONGEST // 2, steps=400, lr=2e-3, batch_size=64
    )
    return {
        f"{name}-{pair}": dataclasses.replace(settings, pair=pair)
        for name, settings in points.items()
        for pair in PAIRS
    }


QUICK = {"rows": 300, "steps": 20}


@lru_cache(maxsize=2)
def problem_of(settings: Multilabel) -> Problem:
    """The divided rows of a run; all pairs share them if ``settings`` has none.

    Raises:
        ValueError: the run makes up its documents but data are given, or the file is malformed; see ``read_mulan``.
    """
    if settings.documents and settings.data:
        raise ValueError(f"this run makes up its documents; {settings.data} can be read with --only 'data-*'")
    if settings.documents:
        return divided(made_up(settings), settings.seed)
    return divided(read_mulan(Path(settings.data)) if settings.data else sample(settings.rows), settings.seed)


def check(settings: Multilabel) -> None:
    """Refuse a run whose file cannot be read, or whose rows are too few to divide."""
    if settings.data:
        problem_of(dataclasses.replace(settings, pair=""))
    elif settings.rows < FEWEST:
        raise ValueError(f"rows must be at least {FEWEST}, was {settings.rows}")


def made_up(settings: Multilabel) -> Part:
    """Documents with the numbers of labels of ``settings``.

    Section 5.1.1: "We draw number of labels uniformly at random from {mean-1, mean, mean+1}", or "from
    {5-r, ..., 5+r}".
    """
    first, last = settings.mean_labels - settings.spread, settings.mean_labels + settings.spread
    return documents(range(first, min(last, LABELS) + 1), settings.words, settings.rows, settings.seed)


def perform(settings: Multilabel, folder: Path) -> Figures:
    """Train one model and measure it on the test rows."""
    pair = PAIRS[settings.pair]
    if settings.model == "classifier":
        fit, test = fit_classifier(
            made_up(settings),
            pair,
            folder,
            steps=settings.steps,
            lr=settings.lr,
            batch_size=settings.batch_size,
            seed=settings.seed,
            report_to=settings.report_to,
        )
    else:
        problem = problem_of(dataclasses.replace(settings, pair=""))
        fit, test = fit_linear(problem, pair, settings.seed, settings.steps, settings.lr), problem.test
    return {"setting": fit.setting, "on_above": fit.on_above, **fit.measured(test)}


STUDY = Study(
    name="multilabel",
    description=__doc__,
    runs=runs(),
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    check=check,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
