"""Explore the models of this recipe: all that docs/exploring.md shows of them.

    python -m recipes.inflection.explore     # trains five models (minutes each) into out/inflection if need be

It writes the results and the pictures; ``python docs/generate.py`` then puts the results into the page.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_sparse
from hf_sparse.generation.labels import token_labels

from ..lib.blocks import ROOT
from ..lib.environment import environment
from ..lib.records import record_of, run_folder, write_json
from .data import read_words
from .model import source_text
from .predictions import ExactMatch, predict
from .run import STUDY

RESULT = Path(__file__).parent / "results" / "exploring.json"
SEEDS = (0, 1, 2)
MODELS = [("entmax15", seed) for seed in SEEDS] + [("alpha_relu", 0), ("softmax", 0)]
EXAMPLE = {"lemma": "draw", "tags": "V;V.PTCP;PST"}
BEAMS = 5
BATCH = 128


def trained(head: str, seed: int, out: Path) -> Any:
    """The recipe's model with a head and a seed, trained now unless it is in ``out``."""
    record_of(head, dataclasses.replace(STUDY.runs[head], seed=seed), STUDY.perform, out)
    return AutoModelForSeq2SeqLM.from_pretrained(run_folder(out, head, seed) / "model").eval()


def read(model: Any, tokenizer: Any, row: dict[str, str]) -> dict[str, torch.Tensor]:
    """Inputs of the model for one word."""
    return dict(tokenizer(source_text(row["lemma"], row["tags"]), return_tensors="pt"))


def example(model: Any, tokenizer: Any) -> dict[str, Any]:
    """All forms of one word, the candidates at every step, and suggestions; draws the tree of forms."""
    inputs = read(model, tokenizer, EXAMPLE)
    support = hf_sparse.enumerate_support(model, inputs, 100, model.generation_config.max_new_tokens)
    tree = hf_sparse.hypothesis_tree(support.sequences, support.probabilities)
    title = f"{EXAMPLE['lemma']} {EXAMPLE['tags']}"
    hf_sparse.plot_hypotheses(tree, tokenizer, title=title, path=ROOT / "docs" / "pictures" / "hypotheses.svg")
    source = source_text(EXAMPLE["lemma"], EXAMPLE["tags"])
    return {
        **EXAMPLE,
        "complete": support.complete,
        "count": len(support.sequences),
        "tree": hf_sparse.tree_text(tree, tokenizer),
        "suggestions": [
            {
                "prefix": prefix,
                "unit": unit,
                "candidates": [
                    {"text": candidate.text, "probability": candidate.probability, "ends": candidate.ends}
                    for candidate in suggestions.candidates
                ],
                "left": suggestions.left,
            }
            for prefix, unit in (("", "token"), ("draw", "token"), ("draw", "word"))
            for suggestions in [
                hf_sparse.suggest(model, prefix, tokenizer, source=source, unit=unit, max_candidates=6)
            ]
        ],
        "steps": [
            {
                "written": token_labels([step.chosen], tokenizer)[0],
                "candidates": list(zip(token_labels(step.tokens, tokenizer), step.probabilities)),
            }
            for step in hf_sparse.step_supports(model, inputs, support.sequences[0])
        ],
    }


def accuracy(model: Any, tokenizer: Any, rows: Any) -> dict[str, float]:
    """Exact match and mean support size of greedy decoding."""
    predictions = predict(model, tokenizer, rows, batch_size=BATCH)
    match = ExactMatch().compute(predictions=predictions.forms, references=rows["form"])["exact_match"]
    return {"exact_match": match, "support_size": predictions.support_size}


def beams(model: Any, tokenizer: Any, rows: Any) -> dict[str, float]:
    """How often the empty string is preferred to beam hypotheses, and quantiles of the sums of the head's weights."""
    preferred, unnormalized_preferred, found_empty, empty, sums = [], [], [], [], []
    for start in range(0, len(rows), BATCH):
        batch = rows.select(range(start, min(start + BATCH, len(rows))))
        texts = [source_text(row["lemma"], row["tags"]) for row in batch]
        inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"))
        compared = hf_sparse.compare_with_empty(model, inputs, num_beams=BEAMS)
        preferred.append(compared.preferred)
        unnormalized_preferred.append(compared.preferred_unnormalized)
        found_empty.append(compared.found_empty)
        empty.append(compared.empty_scores.normalized.exp())
        all_sums = compared.hypothesis_scores.sums
        sums.append(all_sums[~all_sums.isnan()])
    every_sum = torch.cat(sums)
    low, middle, high = every_sum.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=every_sum.dtype)).tolist()
    return {
        "rows": len(rows),
        "beams": BEAMS,
        "empty_preferred": torch.cat(preferred).double().mean().item(),
        "empty_preferred_unnormalized": torch.cat(unnormalized_preferred).double().mean().item(),
        "hypothesis_empty": torch.cat(found_empty).double().mean().item(),
        "empty_impossible": (torch.cat(empty) == 0).double().mean().item(),
        "largest_empty_probability": torch.cat(empty).max().item(),
        "sum_5": low,
        "sum_50": middle,
        "sum_95": high,
    }


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    """Write the results and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=STUDY.out, help="folder of the recipe's results (%(default)s)")
    folder = parser.parse_args(arguments).models
    rows, origin = read_words().dev, environment()  # before the picture changes the working tree
    with torch.enable_grad():
        models = {(head, seed): trained(head, seed, folder) for head, seed in MODELS}
    tokenizer = AutoTokenizer.from_pretrained(run_folder(folder, "entmax15", 0) / "model")
    members = [models["entmax15", seed] for seed in SEEDS]
    ensemble = hf_sparse.Ensemble(members)
    first = members[0]
    hf_sparse.html_report(
        first, tokenizer, source_text(EXAMPLE["lemma"], EXAMPLE["tags"]), path=folder / "report.html"
    )
    support = hf_sparse.enumerate_support(ensemble, read(ensemble, tokenizer, EXAMPLE), 100)
    result = {
        "example": example(first, tokenizer),
        "ensemble": {
            "rows": len(rows),
            "members": [accuracy(member, tokenizer, rows) for member in members],
            "ensemble": accuracy(ensemble, tokenizer, rows),
            "example": {
                "complete": support.complete,
                "forms": list(
                    zip(tokenizer.batch_decode(support.sequences, skip_special_tokens=True), support.probabilities)
                ),
            },
        },
        "beams": {head: beams(models[head, 0], tokenizer, rows) for head in ("softmax", "entmax15", "alpha_relu")},
        **origin,
    }
    write_json(RESULT, result)


if __name__ == "__main__":
    main()
