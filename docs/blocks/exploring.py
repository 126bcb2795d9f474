"""Tables of docs/exploring.md: results of recipes/inflection/explore.py for the models of that recipe."""

from __future__ import annotations

from typing import Any

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
    lines = ["| step | written | possible |", "|---|---|---|"]
    for number, step in enumerate(explored()["example"]["steps"], 1):
        candidates = ", ".join(f"`{token}` {p:.2%}" for token, p in step["candidates"])
        lines.append(f"| {number} | `{step['written']}` | {candidates} |")
    return "\n".join(lines)


@block
def explore_suggestions() -> str:
    """Suggestions for some prefixes of the form."""
    example = explored()["example"]
    lines = [
        f"For `{example['lemma']} {example['tags']}` (⏹: end of text):",
        "",
        "| prefix | unit | candidates | left |",
        "|---|---|---|---|",
    ]
    for row in example["suggestions"]:
        candidates = ", ".join(
            f"{'`' + entry['text'] + '`' if entry['text'] else ''}{'⏹' if entry['ends'] else ''} "
            f"{entry['probability']:.2%}"
            for entry in row["candidates"]
        )
        prefix = f"`{row['prefix']}`" if row["prefix"] else "(empty)"
        lines.append(f"| {prefix} | {row['unit']} | {candidates} | {row['left']:.2%} |")
    return "\n".join(lines)


@block
def explore_ensemble() -> str:
    """Members and their ensemble, on held-out words."""
    result = explored()["ensemble"]
    lines = ["| model | exact match | candidates per step |", "|---|---|---|"]
    rows = [(f"seed {seed}", member) for seed, member in enumerate(result["members"])]
    for name, row in [*rows, ("ensemble", result["ensemble"])]:
        lines.append(f"| {name} | {row['exact_match']:.1%} | {row['support_size']:.2f} |")
    forms = result["example"]["forms"]
    extent = "exactly" if result["example"]["complete"] else "at least"
    likeliest = ", ".join(f"*{form or '(empty)'}* {p:.1%}" for form, p in forms[:4])
    return "\n".join(
        [
            *lines,
            "",
            f"Three entmax15 models with different seeds, greedy, {result['rows']:,} held-out rows. For the word "
            f"above the ensemble holds {extent} {len(forms)} forms possible: {likeliest}.",
        ]
    )


@block
def explore_sums() -> str:
    """The sums of the weights of each head."""
    lines = ["| head | sum of weights: 5 % | median | 95 % |", "|---|---|---|---|"]
    for head, row in explored()["beams"].items():
        lines.append(f"| {head} | {row['sum_5']:.3f} | {row['sum_50']:.3f} | {row['sum_95']:.3f} |")
    return "\n".join([*lines, "", "Over all steps of all beam hypotheses for the held-out rows."])


@block
def explore_empty() -> str:
    """How often the empty string is preferred."""
    lines = [
        "| head | empty preferred | by unnormalized weights | empty impossible | largest probability |",
        "|---|---|---|---|---|",
    ]
    beams = explored()["beams"]
    for head, row in beams.items():
        lines.append(
            f"| {head} | {row['empty_preferred']:.1%} | {row['empty_preferred_unnormalized']:.1%} | "
            f"{row['empty_impossible']:.1%} | {row['largest_empty_probability']:.2g} |"
        )
    rows, width = beams["entmax15"]["rows"], beams["entmax15"]["beams"]
    return "\n".join(
        [
            *lines,
            "",
            f"{rows:,} held-out rows, {width} beams. The forms are short; the papers find the effect in translation.",
        ]
    )
