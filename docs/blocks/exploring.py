"""Tables of docs/exploring.md: results of recipes/inflection/explore.py for the models of that recipe."""

from __future__ import annotations

from typing import Any

from recipes.lib import markdown
from recipes.lib.blocks import block, read


def explored() -> dict[str, Any]:
    """The results of recipes/inflection/explore.py."""
    return read("recipes/inflection/results/exploring.json")


def origin(result: dict[str, Any]) -> str:
    """Models and versions behind the results."""
    versions = result["versions"]
    return (
        f"Models of recipes.inflection, default settings; torch {versions['torch']}, transformers "
        f"{versions['transformers']}, commit {(result['commit'] or 'unknown')[:10]}."
    )


@block
def explore_tree() -> str:
    """All hypotheses for one word."""
    result = explored()
    found = result["example"]
    extent = "the complete set" if found["complete"] else "the list is incomplete"
    return "\n".join(
        [
            "```text",
            found["tree"],
            "```",
            "",
            f"`{found['lemma']} {found['tags']}`: {found['count']} hypotheses, {extent}. {origin(result)}",
        ]
    )


@block
def explore_steps() -> str:
    """The candidates at each step of the likeliest hypothesis."""
    rows = []
    for number, step in enumerate(explored()["example"]["steps"], 1):
        candidates = ", ".join(f"`{token}` {p:.2%}" for token, p in step["candidates"])
        rows.append([str(number), f"`{step['written']}`", candidates])
    return markdown.table(["step", "written", "possible"], rows)


@block
def explore_suggestions() -> str:
    """Suggestions for some prefixes of the form."""
    example = explored()["example"]
    rows = []
    for row in example["suggestions"]:
        candidates = ", ".join(
            f"{'`' + entry['text'] + '`' if entry['text'] else ''}{'⏹' if entry['ends'] else ''} "
            f"{entry['probability']:.2%}"
            for entry in row["candidates"]
        )
        prefix = f"`{row['prefix']}`" if row["prefix"] else "(empty)"
        rows.append([prefix, row["unit"], candidates, f"{row['left']:.2%}"])
    suggestions = markdown.table(["prefix", "unit", "candidates", "left"], rows)
    return f"For `{example['lemma']} {example['tags']}` (⏹: end of text):\n\n{suggestions}"


@block
def explore_ensemble() -> str:
    """Members and their ensemble, on held-out words."""
    result = explored()["ensemble"]
    models = {f"seed {seed}": member for seed, member in enumerate(result["members"])}
    models["ensemble"] = result["ensemble"]
    rows = [[name, f"{row['exact_match']:.1%}", f"{row['support_size']:.2f}"] for name, row in models.items()]
    forms = result["example"]["forms"]
    extent = "exactly" if result["example"]["complete"] else "at least"
    likeliest = ", ".join(f"*{form or '(empty)'}* {p:.1%}" for form, p in forms[:4])
    return (
        f"{markdown.table(['model', 'exact match', 'candidates per step'], rows)}\n\n"
        f"Three entmax15 models with different seeds, greedy, {result['rows']:,} held-out rows. For the word "
        f"above the ensemble holds {extent} {len(forms)} forms possible: {likeliest}."
    )


@block
def explore_sums() -> str:
    """The sums of the weights of each head."""
    rows = [
        [head, *(f"{row[key]:.3f}" for key in ("sum_5", "sum_50", "sum_95"))]
        for head, row in explored()["beams"].items()
    ]
    sums = markdown.table(["head", "sum of weights: 5 %", "median", "95 %"], rows)
    return f"{sums}\n\nOver all steps of all beam hypotheses for the held-out rows."


@block
def explore_empty() -> str:
    """How often the empty string is preferred."""
    columns = ["head", "empty preferred", "by unnormalized weights", "empty impossible", "largest probability"]
    shares = ("empty_preferred", "empty_preferred_unnormalized", "empty_impossible")
    beams = explored()["beams"]
    rows = [
        [head, *(f"{row[share]:.1%}" for share in shares), f"{row['largest_empty_probability']:.2g}"]
        for head, row in beams.items()
    ]
    count, width = beams["entmax15"]["rows"], beams["entmax15"]["beams"]
    return (
        f"{markdown.table(columns, rows)}\n\n"
        f"{count:,} held-out rows, {width} beams. The forms are short; the papers find the effect in translation."
    )
