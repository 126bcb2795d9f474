"""What the inflection recipe reports: the comparison, the hypotheses, and the model card, all from one result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_sparse import SparseConfig
from hf_sparse.card import update_card

CARD = """
# Morphological inflection with a sparse {head} head

A small encoder-decoder ({architecture}, {parameters:,} parameters) that writes an inflected form from a lemma and
tags, one character at a time: `{source}` gives `{answer}`. Softmax is replaced by {maps}, so most characters have a
probability of exactly zero at every step, and the forms that are possible at all can be listed.

## Use

```python
from transformers import AutoTokenizer

import hf_sparse

path = {path_text}
model = hf_sparse.from_pretrained(path)
tokenizer = AutoTokenizer.from_pretrained(path)

inputs = tokenizer({source_text}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))

possible = hf_sparse.enumerate_support(model, inputs, max_hypotheses={max_hypotheses})
for ids, probability in zip(possible.sequences[:10], possible.probabilities):
    print(f"{{probability:.4%}}", tokenizer.decode(ids, skip_special_tokens=True))
print("complete:", possible.complete)
```

## Figures

Greedy decoding of {dev_rows:,} rows with {dev_lemmas:,} lemmas, {unseen:,} of which do not occur in training. All
models were trained alike, with the same seed.

| head | attention | exact match | candidates a step | steps with one candidate |
|---|---|---|---|---|
{table}

- `{lemma} {tags}`: {count} of nonzero probability{extent}; likeliest: {likeliest}.

## Data and training

{data}; {train_rows:,} rows. {steps} steps of {batch_size} rows, peak learning rate {lr:g}, seed {seed}; {seconds:.0f}
seconds on {device} ({cores} cores), {versions}. Made by `recipes/inflection.py`, from which the rest can be read.

## Limits

The model knows the characters and tags of its training data and nothing else. It was trained in minutes to show
sparse heads at work, and is no reference for the language.
"""


def data_text(data: dict[str, int]) -> str:
    """What is trained and evaluated on, as text."""
    return (
        f"{data['train_rows']:,} rows to train on; {data['dev_rows']:,} to evaluate on, with {data['dev_lemmas']:,} "
        f"lemmas, {data['unseen_dev_lemmas']:,} of them unseen in training; {data['vocabulary']} characters and tags"
    )


def comparison(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison, one line a head."""
    lines = ["head        attention   exact match   candidates/step   one-candidate steps   seconds"]
    for row in rows:
        lines.append(
            f"{row['head']:<11} {row['attention']:<11} {row['exact_match']:>10.1%} {row['support_size']:>17.2f} "
            f"{row['one_candidate_rate']:>21.1%} {row['seconds']:>9.0f}"
        )
    return "\n".join(lines)


def hypotheses_text(found: dict[str, Any], head: str, shown: int = 20) -> str:
    """The hypotheses as text."""
    count = len(found["forms"])
    if found["complete"]:
        extent = f"the complete set of forms of nonzero probability under {head}: {count}"
    else:
        extent = f"the search stopped at {count} forms, {found['mass']:.2%} of the probability under {head}"
    lines = [f"{found['lemma']} {found['tags']}: {extent}"]
    lines += [f"  {entry['probability']:9.4%}  {entry['form'] or '(empty)'}" for entry in found["forms"][:shown]]
    if count > shown:
        lines.append(f"  ... {count - shown} more in results.json")
    return "\n".join(lines)


def write_model_card(folder: Path, path: Path, result: dict[str, Any]) -> None:
    """Write ``README.md`` beside a saved model.

    Args:
        folder: where the model lies now.
        path: where it will lie, for the example.
        result: what the run writes to ``results.json``.
    """
    saved = next(row for row in result["heads"] if row["head"] == result["saved_head"])
    settings, data, found = result["settings"], result["data"], result["hypotheses"]
    embedded = settings["train"] is None
    name = "English verbs" if embedded else Path(settings["dev"]).name
    card = ModelCardData(
        language="en" if embedded else None,
        license="apache-2.0" if embedded else None,
        library_name="transformers",
        tags=["morphological-inflection"],
        model_name=f"inflection-{saved['head']}",
        eval_results=[
            EvalResult(
                task_type="text2text-generation",
                task_name="Morphological inflection",
                dataset_type=name.lower().replace(" ", "-"),
                dataset_name=name,
                metric_type="exact_match",
                metric_name="Exact match",
                metric_value=saved["exact_match"],
            )
        ],
    )
    forms = [entry["form"] for entry in found["forms"]]
    versions = result["versions"]
    text = CARD.format(
        head=saved["head"],
        maps=" and ".join(f"{name} {where}" for name, where in _places(saved)),
        architecture=saved["architecture"],
        parameters=saved["parameters"],
        source=found["source"],
        source_text=json.dumps(found["source"], ensure_ascii=False),
        answer=found["greedy"],
        path_text=json.dumps(path.as_posix()),
        max_hypotheses=settings["max_hypotheses"],
        dev_rows=data["dev_rows"],
        dev_lemmas=data["dev_lemmas"],
        unseen=data["unseen_dev_lemmas"],
        table="\n".join(_table_row(row) for row in result["heads"]),
        lemma=found["lemma"],
        tags=found["tags"],
        count=f"{len(forms)} form{'' if len(forms) == 1 else 's'}",
        extent=", which is all there are" if found["complete"] else ", and more that were not listed",
        likeliest=", ".join(f"`{entry['form'] or ' '}` ({entry['probability']:.2%})" for entry in found["forms"][:3]),
        data="English verbs made for hf_sparse, with one lemma in ten held out"
        if embedded
        else f"`{settings['train']}`",
        train_rows=data["train_rows"],
        steps=settings["steps"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        seed=settings["seed"],
        seconds=saved["training_seconds"],
        device=result["hardware"]["device"],
        cores=result["hardware"]["cores"],
        versions=", ".join(f"{package} {versions[package]}" for package in ("hf_sparse", "transformers", "torch")),
    )
    ModelCard(f"---\n{card.to_yaml()}\n---\n{text}").save(folder / "README.md")
    figures = {
        "head_support": saved["support_size"],
        "head_zero_rate": 1 - saved["support_size"] / data["vocabulary"],
    }
    config = SparseConfig.from_dict(saved["settings"])
    update_card(folder, config, figures, load_from=path.as_posix())


def _places(saved: dict[str, Any]) -> list[tuple[str, str]]:
    if saved["head"] == saved["attention"]:
        return [(saved["head"], "at the head and in attention")]
    return [(saved["head"], "at the head"), (saved["attention"], "in attention")]


def _table_row(row: dict[str, Any]) -> str:
    cells = (
        row["head"],
        row["attention"],
        f"{row['exact_match']:.1%}",
        f"{row['support_size']:.2f}",
        f"{row['one_candidate_rate']:.1%}",
    )
    return f"| {' | '.join(cells)} |"
