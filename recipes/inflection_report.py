"""What the inflection recipe reports: the comparison, the forms of one word, and model cards, all from its records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_sparse import SparseConfig
from hf_sparse.model.model_card import update_card

Record = dict[str, Any]

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

{data}; {train_rows:,} rows. {steps} steps of {batch_size} rows, peak learning rate {lr:g}, seed {seed};
{cpu_seconds:.0f} CPU seconds with all that was measured, on {device} ({threads} threads), {versions}.
Made by `recipes/inflection.py`, from which the rest can be read.

## Limits

The model knows the characters and tags of its training data and nothing else. It was trained in minutes to show
sparse heads at work, and is no reference for the language.
"""


def report(results: dict[str, Any], out: Path) -> None:
    """Print data, comparison and the forms of one word, and put a card beside every model with a sparse head."""
    records = results["runs"]
    print(f"\n{data_text(records[0]['figures']['rows'])}\n\n{comparison(records)}\n")
    sparse = [record for record in records if "hypotheses" in record["figures"]]
    if not sparse:
        print("A softmax head gives every string nonzero probability: there are no forms to list.")
        return
    for record in sparse:
        folder = folder_of(record, out)
        write_model_card(folder / "model", record, alike(record, records))
    shown = next((record for record in sparse if record["run"] == "entmax15"), sparse[0])
    print(hypotheses_text(shown["figures"]["hypotheses"], shown["settings"]["head"]))
    print(
        "\nSaved, loaded by hf_sparse.from_pretrained and by AutoModelForSeq2SeqLM: equal predictions.\n"
        f"Model with its card, and picture of where it looks: {folder_of(shown, out)}/model, cross_attention.png"
    )


def folder_of(record: Record, out: Path) -> Path:
    """Where a run keeps its files."""
    return out / "runs" / f"{record['run']}-{record['settings']['seed']}"


def alike(record: Record, records: Sequence[Record]) -> list[Record]:
    """Those of ``records`` that differ from ``record`` in nothing but their maps."""

    def rest(settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in ("head", "attention")}

    return [other for other in records if rest(other["settings"]) == rest(record["settings"])]


def data_text(rows: dict[str, int]) -> str:
    """What is trained and evaluated on, as text."""
    return (
        f"{rows['train']:,} rows to train on; {rows['dev']:,} to evaluate on, with {rows['dev_lemmas']:,} lemmas, "
        f"{rows['unseen_dev_lemmas']:,} of them unseen in training; {rows['vocabulary']} characters and tags"
    )


def comparison(records: Sequence[Record]) -> str:
    """The comparison, one line a run."""
    lines = ["run         seed  attention   exact match   candidates/step   one-candidate steps   CPU ms/step"]
    for record in records:
        figures, settings = record["figures"], record["settings"]
        cost = figures["step_cpu_seconds"]
        lines.append(
            f"{record['run']:<11} {settings['seed']:>4}  {settings['attention']:<11} {figures['exact_match']:>10.1%} "
            f"{figures['head_support']:>17.2f} {figures['one_candidate_rate']:>21.1%} "
            f"{'-' if cost is None else f'{1000 * cost:.0f}':>13}"
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
    lines += [f"  {p:9.4%}  {form or '(empty)'}" for form, p in list(found["forms"].items())[:shown]]
    if count > shown:
        lines.append(f"  ... {count - shown} more in results.json")
    return "\n".join(lines)


def write_model_card(folder: Path, record: Record, compared: Sequence[Record]) -> None:
    """Write ``README.md`` beside a saved model with a sparse head.

    Args:
        folder: where the model lies.
        record: of its run.
        compared: the runs of its table, its own among them.
    """
    figures, settings, versions = record["figures"], record["settings"], record["versions"]
    rows, found = figures["rows"], figures["hypotheses"]
    embedded = not settings["data"]
    name = "English verbs" if embedded else Path(settings["dev"] or settings["data"]).name
    card = ModelCardData(
        language="en" if embedded else None,
        license="apache-2.0" if embedded else None,
        library_name="transformers",
        tags=["morphological-inflection"],
        model_name=f"inflection-{record['run']}",
        eval_results=[
            EvalResult(
                task_type="text2text-generation",
                task_name="Morphological inflection",
                dataset_type=name.lower().replace(" ", "-"),
                dataset_name=name,
                metric_type="exact_match",
                metric_name="Exact match",
                metric_value=figures["exact_match"],
            )
        ],
    )
    text = CARD.format(
        head=settings["head"],
        maps=_maps(settings),
        architecture=figures["architecture"],
        parameters=figures["parameters"],
        source=found["source"],
        source_text=json.dumps(found["source"], ensure_ascii=False),
        answer=found["greedy"],
        path_text=json.dumps(folder.as_posix()),
        max_hypotheses=settings["max_hypotheses"],
        dev_rows=rows["dev"],
        dev_lemmas=rows["dev_lemmas"],
        unseen=rows["unseen_dev_lemmas"],
        table="\n".join(_table_row(other) for other in compared),
        lemma=found["lemma"],
        tags=found["tags"],
        count=f"{len(found['forms'])} form{'' if len(found['forms']) == 1 else 's'}",
        extent=", which is all there are" if found["complete"] else ", and more that were not listed",
        likeliest=", ".join(f"`{form or ' '}` ({p:.2%})" for form, p in list(found["forms"].items())[:3]),
        data="English verbs made for hf_sparse, with one lemma in ten held out"
        if embedded
        else f"`{settings['data']}`",
        train_rows=rows["train"],
        steps=settings["steps"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        seed=settings["seed"],
        cpu_seconds=record["cpu_seconds"],
        device=record["hardware"]["device"],
        threads=record["hardware"]["torch_threads"],
        versions=", ".join(f"{package} {versions[package]}" for package in ("hf_sparse", "transformers", "torch")),
    )
    ModelCard(f"---\n{card.to_yaml()}\n---\n{text}").save(folder / "README.md")
    sparsity = {
        "head_support": figures["head_support"],
        "head_zero_rate": 1 - figures["head_support"] / rows["vocabulary"],
    }
    update_card(folder, SparseConfig.from_dict(figures["config"]), sparsity, load_from=folder.as_posix())


def _maps(settings: dict[str, Any]) -> str:
    head, attention = settings["head"], settings["attention"]
    if attention == "softmax":
        return f"{head} at the head"
    return (
        f"{head} at the head and in attention"
        if head == attention
        else f"{head} at the head and {attention} in attention"
    )


def _table_row(record: Record) -> str:
    figures, settings = record["figures"], record["settings"]
    cells = (
        settings["head"],
        settings["attention"],
        f"{figures['exact_match']:.1%}",
        f"{figures['head_support']:.2f}",
        f"{figures['one_candidate_rate']:.1%}",
    )
    return f"| {' | '.join(cells)} |"
