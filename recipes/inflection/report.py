"""Report of the inflection recipe: comparison of heads, the forms of one word, blocks of the README, model cards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import origin
from ..lib.records import Figures, Record, run_folder
from ..lib.seeds import Mean, by_run, mean_of, seeds_text

RESULTS = "recipes/inflection/results"
MEASURES = (
    Measure("exact match", "exact_match", ".1%", "higher"),
    Measure("candidates a step", "head_support", ".2f"),
    Measure("steps with one candidate", "one_candidate_rate", ".1%"),
    Measure("CPU seconds a training step", "step_cpu_seconds", ".3f", "lower"),
)
KEPT_FORMS = 10

USE = """
```python
from transformers import AutoTokenizer

import hf_sparse

path = {path}
model = hf_sparse.from_pretrained(path)
tokenizer = AutoTokenizer.from_pretrained(path)

inputs = tokenizer({source}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))

possible = hf_sparse.enumerate_support(model, inputs, max_hypotheses={max_hypotheses})
for ids, probability in zip(possible.sequences[:10], possible.probabilities):
    print(f"{{probability:.4%}}", tokenizer.decode(ids, skip_special_tokens=True))
print("complete:", possible.complete)
```

For `{lemma} {tags}` {extent}; likeliest: {likeliest}.
"""


def report(results: dict[str, Any], out: Path) -> None:
    """Print data, comparison and the forms of one word."""
    records = results["runs"]
    print(f"\n{data_text(records[0]['figures']['rows'])}\n\n{comparison(records)}\n")
    sparse = [record for record in records if "hypotheses" in record["figures"]]
    if not sparse:
        print("A softmax head gives every string nonzero probability: there are no forms to list.")
        return
    shown = next((record for record in sparse if record["run"] == "entmax15"), sparse[0])
    print(hypotheses_text(shown["figures"]["hypotheses"], shown["settings"]["head"]))
    print(
        "\nSaved, loaded by hf_sparse.from_pretrained and by AutoModelForSeq2SeqLM: equal predictions.\n"
        "Model with its card, and picture of its cross-attention: "
        f"{run_folder(out, shown['run'], shown['settings']['seed'])}/model, cross_attention.png"
    )


def data_text(rows: dict[str, int]) -> str:
    """Numbers of rows, lemmas and symbols, as text."""
    return (
        f"{rows['train']:,} rows to train on; {rows['dev']:,} to evaluate on, with {rows['dev_lemmas']:,} lemmas, "
        f"{rows['unseen_dev_lemmas']:,} of them unseen in training; {rows['vocabulary']} characters and tags"
    )


def comparison(records: Sequence[Record]) -> str:
    """Figures of all runs, one line per run."""
    width = max(11, *(len(record["run"]) for record in records))
    lines = [f"{'run':<{width}} seed  attention   exact match   candidates/step   one-candidate steps   CPU ms/step"]
    for record in records:
        figures, settings = record["figures"], record["settings"]
        cost = figures["step_cpu_seconds"]
        lines.append(
            f"{record['run']:<{width}} {settings['seed']:>4}  {settings['attention']:<11} "
            f"{figures['exact_match']:>10.1%} {figures['head_support']:>17.2f} {figures['one_candidate_rate']:>21.1%} "
            f"{'-' if cost is None else f'{1000 * cost:.0f}':>13}"
        )
    return "\n".join(lines)


def hypotheses_text(found: dict[str, Any], head: str, shown: int = 20) -> str:
    """The likeliest forms of a word with their probabilities, as text."""
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


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: without the training log, and with the likeliest forms only."""
    kept = {name: value for name, value in figures.items() if name != "loss"}
    if found := figures.get("hypotheses"):
        likeliest = dict(list(found["forms"].items())[:KEPT_FORMS])
        kept["hypotheses"] = {**found, "count": num_forms(found), "forms": likeliest}
    return kept


def num_forms(found: dict[str, Any]) -> int:
    """Number of forms that were listed for a word, in records and in summaries."""
    return found.get("count", len(found["forms"]))


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one run, compared with the runs that differ in their maps only."""
    figures, settings = record["figures"], record["settings"]
    head, attention = settings["head"], settings["attention"]
    support = {
        "head_support": figures["head_support"],
        "head_zero_rate": 1 - figures["head_support"] / figures["rows"]["vocabulary"],
    }
    english = "English inflection" if not settings["data"] else "Inflection"
    source = settings["dev"] or settings["data"]
    return Card(
        name=f"inflection-{record['run']}",
        title=f"{english} with {head} at the head and {attention} in attention",
        task="text2text-generation",
        what=f"A small encoder-decoder ({figures['architecture']}, {figures['parameters']:,} parameters) that "
        "writes an inflected form from a lemma and tags, character by character.",
        data=f"{Path(source).name if source else 'English verbs of the repository'}: {described(record)}.",
        measures=MEASURES,
        rows={other["run"]: other["figures"] for other in alike(record, records, "head", "attention")},
        own=record["run"],
        dense="softmax",
        limits="It knows the characters and tags of its training data and nothing else. It was trained in minutes "
        "to show sparse heads at work, and is no reference for the language; a point of exact match means little.",
        record=record,
        config=figures["config"],
        support=support if "hypotheses" in figures else {},
        use=use(record) if "hypotheses" in figures else "",
        metadata={} if settings["data"] else {"language": "en", "license": "apache-2.0"},
    )


def use(record: Record) -> str:
    """A program that inflects one word and lists all its forms, and what it prints."""
    found = record["figures"]["hypotheses"]
    likeliest = [f"`{form or ' '}` ({p:.2%})" for form, p in list(found["forms"].items())[:3]]
    count = num_forms(found)
    forms = f"{count} form{'' if count == 1 else 's'}"
    return USE.strip().format(
        path=json.dumps(record["weights"]),
        source=json.dumps(found["source"], ensure_ascii=False),
        max_hypotheses=record["settings"]["max_hypotheses"],
        lemma=found["lemma"],
        tags=found["tags"],
        extent=f"it lists all {forms}" if found["complete"] else f"it lists {forms}, and there are more",
        likeliest=", ".join(likeliest),
    )


def described(record: Record) -> str:
    """Rows, training and seed of a run."""
    return f"{extent_of(record)}, {seeds_text([record])}"


def extent_of(record: Record) -> str:
    """Rows and training of a run."""
    rows, settings = record["figures"]["rows"], record["settings"]
    return (
        f"{rows['train']:,} rows to train on, {rows['dev']:,} held out with {rows['unseen_dev_lemmas']:,} unseen "
        f"lemmas; {settings['steps']} steps of {settings['batch_size']} rows"
    )


def head_text(record: Record) -> str:
    """The map at the head, with its threshold if it has one."""
    config = record["figures"]["config"]
    tau = config["head"].get("tau") if config and config["head"] else None
    return record["settings"]["head"] + ("" if tau is None else f" (tau {tau:.2f}, automatic)")


def comparison_of_heads(name: str) -> str:
    """The comparison of heads in a summary, as a table of the documentation."""
    records = read(f"{RESULTS}/{name}.json")["runs"]
    rows = []
    for of_run in by_run(records).values():
        record = of_run[0]
        means = mean_of([{measure.key: each["figures"][measure.key] for measure in MEASURES} for each in of_run], Mean)
        cells = {measure.key: measure.text(means) for measure in MEASURES}
        cells["head_support"] += f" of {record['figures']['rows']['vocabulary']}"
        rows.append([head_text(record), record["settings"]["attention"], *cells.values()])
    shown = next(record for record in records if record["run"] == "entmax15")
    found = shown["figures"]["hypotheses"]
    extent = "the complete set of possible forms has" if found["complete"] else "the search found"
    likeliest = ", ".join(f"*{form}* {p:.1%}" for form, p in list(found["forms"].items())[:4])
    heads = markdown.table(["head", "attention", *(measure.label for measure in MEASURES)], rows)
    return (
        f"{heads}\n\n"
        f"{extent_of(shown)}, {seeds_text(records)}. {origin(records)} For `{found['lemma']} {found['tags']}` "
        f"{extent} {num_forms(found)} ({shown['settings']['head']} head, {seeds_text([shown])}): {likeliest}."
    )


@block
def inflection() -> str:
    """Heads on English verbs."""
    return comparison_of_heads("english_verbs")


@block
def sigmorphon() -> str:
    """Heads on English of the shared task."""
    return comparison_of_heads("sigmorphon_english")


@block
def learning_rates() -> str:
    """Exact match of each head by peak learning rate, size of the initial weights and temperature."""
    records = read(f"{RESULTS}/learning_rates.json")["runs"]
    matches: dict[tuple[str, str], dict[str, list[float]]] = {}
    for record in records:
        settings = record["settings"]
        row = f"{settings['init_std']:g}", f"{settings['lr']:g}"
        column = settings["head"] + ("" if settings["temperature"] == "auto" else ", temperature 1")
        matches.setdefault(row, {}).setdefault(column, []).append(record["figures"]["exact_match"])
    columns = next(iter(matches.values()))
    rates = markdown.table(
        ["init_std", "peak learning rate", *columns],
        [
            [*row, *(", ".join(f"{100 * match:.1f}" for match in found[column]) for column in columns)]
            for row, found in matches.items()
        ],
    )
    settings, rows = records[0]["settings"], records[0]["figures"]["rows"]
    seeds = ", ".join(str(record["settings"]["seed"]) for record in by_run(records)[records[0]["run"]])
    return (
        f"{rates}\n\n"
        f"Exact match in % of {rows['dev']} held-out words, with seeds {seeds}; {settings['steps']} steps of "
        f"{settings['batch_size']} rows, dropout {settings['dropout']}. {origin(records)}"
    )
