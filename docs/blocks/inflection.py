"""The inflection recipe: how its heads compare, and which learning rates they bear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards
from ._studies import origin

RESULT = "recipes/results/inflection.json"
ENGLISH = "recipes/results/sigmorphon_english.json"
MEASURES = (
    Measure("exact match", "exact_match", ".1%", "higher"),
    Measure("candidates a step", "head_support", ".2f"),
    Measure("steps with one candidate", "one_candidate_rate", ".1%"),
    Measure("CPU seconds a training step", "step_cpu_seconds", ".3f"),
)


def head_text(record: dict[str, Any]) -> str:
    """The map at the head, with its threshold where it has one."""
    config = record["figures"]["config"]
    tau = config["head"].get("tau") if config and config["head"] else None
    return record["settings"]["head"] + ("" if tau is None else f" (tau {tau:.2f}, automatic)")


def described(record: dict[str, Any]) -> str:
    """The rows and the training of a run."""
    rows, settings = record["figures"]["rows"], record["settings"]
    return (
        f"{rows['train']:,} rows to train on, {rows['dev']:,} held out with {rows['unseen_dev_lemmas']:,} unseen "
        f"lemmas; {settings['steps']} steps of {settings['batch_size']} "
        f"rows, seed {settings['seed']}"
    )


def comparison_of_heads(result: str) -> str:
    """The comparison of heads in one committed result of recipes/inflection.py."""
    records = read(result)["runs"]
    heading = ["head", "attention", *(measure.label for measure in MEASURES)]
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    for record in records:
        cells = {measure.key: measure.text(record["figures"]) for measure in MEASURES}
        cells["head_support"] += f" of {record['figures']['rows']['vocabulary']}"
        lines.append(f"| {head_text(record)} | {record['settings']['attention']} | {' | '.join(cells.values())} |")
    shown = next(record for record in records if record["run"] == "entmax15")
    found = shown["figures"]["hypotheses"]
    extent = "the complete set of possible forms has" if found["complete"] else "the search found"
    likeliest = ", ".join(f"*{form}* {p:.1%}" for form, p in list(found["forms"].items())[:4])
    lines += [
        "",
        f"{described(shown)}. {origin(records)} For `{found['lemma']} {found['tags']}` {extent} {len(found['forms'])} "
        f"({shown['settings']['head']} head): {likeliest}.",
    ]
    return "\n".join(lines)


@block
def inflection() -> str:
    """On the verbs that come with the recipe."""
    return comparison_of_heads(RESULT)


@block
def sigmorphon() -> str:
    """On the shared task's English."""
    return comparison_of_heads(ENGLISH)


@cards
def sparse_heads() -> Iterator[Card]:
    """A card for every model with a sparse head, on the verbs that come with the recipe."""
    records = read(RESULT)["runs"]
    for record in records:
        figures, settings = record["figures"], record["settings"]
        if "hypotheses" not in figures:
            continue
        yield Card(
            name=f"inflection-{record['run']}",
            title=f"English inflection with {settings['head']} at the head and {settings['attention']} in attention",
            task="text2text-generation",
            what=f"A small encoder-decoder ({figures['architecture']}, {figures['parameters']:,} parameters) that "
            "writes an inflected form from a lemma and tags, character by character.",
            data=f"English verbs of the repository: {described(record)}.",
            measures=MEASURES,
            rows={other["run"]: other["figures"] for other in records},
            own=record["run"],
            dense="softmax",
            command=f"python recipes/inflection.py --only {record['run']}",
            weights=f"out/inflection/runs/{record['run']}-{settings['seed']}/model",
            limits="It knows the characters and tags of its training data and nothing else. It was trained in minutes "
            "to show sparse heads at work, and is no reference for the language; a point of exact match means little.",
            result=record,
            config=figures["config"],
            support={
                "head_support": figures["head_support"],
                "head_zero_rate": 1 - figures["head_support"] / figures["rows"]["vocabulary"],
            },
        )


@block
def learning_rates() -> str:
    """Which peak learning rates and initial weights each head learns with."""
    result = read("recipes/results/learning_rates.json")
    heads = ("softmax", "entmax15", "alpha_relu")
    lines = [f"| init_std | peak learning rate | steps | {' | '.join(heads)} |", "|---" * 6 + "|"]
    for row in result["rows"]:
        cells = [f"{row[head]:.1f} %" if row[head] else "**0 %**" for head in heads]
        lines.append(f"| {row['init_std']} | {row['lr']:g} | {row['steps']} | {' | '.join(cells)} |")
    settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items())
    return "\n".join([*lines, "", f"{result['what']}; {settings}. Origin: {result['origin']}."])
