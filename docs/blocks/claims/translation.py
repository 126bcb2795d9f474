"""Claims on repetition and omission in translation: figures of the systems with constrained attention."""

from __future__ import annotations

from ._outcome import Outcome, figures_of, listed, seeds_of

RESULTS = "recipes/translation/results"
SHARED_START, FROM_SCRATCH, CONVERGED = (
    f"{RESULTS}/{name}.json" for name in ("multi30k", "multi30k_from_scratch", "multi30k_converged")
)
# The one that counts first.
STUDIES = {"from scratch": CONVERGED, "after shared steps": SHARED_START}
ATTENTIONS = ("softmax", "sparsemax", "csoftmax-predicted", "csparsemax-predicted")
BETTER = {"bleu": max, "rep": min, "drop": min}


def constrained_sparsemax_is_first(figure: str) -> Outcome:
    """Compare one of BLEU, REP and DROP between four attentions; what counts is the training from scratch."""
    texts, firsts = [], []
    for study, path in STUDIES.items():
        systems = figures_of(path)
        values = {name: systems[name][figure] for name in ATTENTIONS}
        texts.append(f"{study}: {listed(values, '.2f')}{seeds_of(path, ATTENTIONS)}")
        firsts.append(BETTER[figure](values, key=values.__getitem__))
    return Outcome("; ".join(texts), firsts[0] == "csparsemax-predicted")


def predicted_fertility_is_best() -> Outcome:
    """Compare BLEU of constrained sparsemax between fertilities."""
    kind = "csparsemax-"
    found = {name: figures for name, figures in figures_of(SHARED_START).items() if name.startswith(kind)}
    bleu = {name.removeprefix(kind): figures["bleu"] for name, figures in found.items()}
    text = listed(bleu, ".2f") + seeds_of(SHARED_START, found)
    return Outcome(text, max(bleu, key=bleu.__getitem__) == "predicted")


def coverage_vector_helps() -> Outcome:
    """Compare softmax with and without a coverage vector, trained from scratch; the longest training counts."""
    texts, helps = [], []
    for study, path in {"3,400 steps": CONVERGED, "1,000 steps": FROM_SCRATCH}.items():
        systems = figures_of(path)
        pairs = {key: (systems["softmax"][key], systems["softmax-coverage"][key]) for key in BETTER}
        text = ", ".join(f"{without:.2f} to {with_it:.2f}" for without, with_it in pairs.values())
        texts.append(f"{study}: {text}{seeds_of(path, ('softmax', 'softmax-coverage'))}")
        helps.append(all(BETTER[key](pair) == pair[1] != pair[0] for key, pair in pairs.items()))
    return Outcome("; ".join(texts), helps[0])
