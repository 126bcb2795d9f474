"""The inflection recipe: how its heads compare, and which learning rates they bear."""

from __future__ import annotations

from ._blocks import block, read


def comparison_of_heads(name: str) -> str:
    """The comparison of heads in one committed result of recipes/inflection.py."""
    result = read(f"recipes/results/{name}.json")
    lines = [
        "| head | attention | exact match | candidates a step | steps with one candidate | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["heads"]:
        head = row["settings"]["head"] if row.get("settings") else None
        tau = f" (tau {head['tau']:.2f}, automatic)" if head and "tau" in head else ""
        lines.append(
            f"| {row['head']}{tau} | {row['attention']} | {row['exact_match']:.1%} | {row['support_size']:.2f} of "
            f"{result['data']['vocabulary']} | {row['one_candidate_rate']:.1%} | {row['seconds']:.0f} |"
        )
    data, hardware, versions = result["data"], result["hardware"], result["versions"]
    forms = result["hypotheses"]["forms"]
    likeliest = ", ".join(f"*{form['form']}* {form['probability']:.1%}" for form in forms[:4])
    extent = "the complete set of possible forms has" if result["hypotheses"]["complete"] else "the search found"
    settings, found = result["settings"], result["hypotheses"]
    lines += [
        "",
        f"{data['train_rows']:,} rows to train on, {data['dev_rows']:,} held out with {data['unseen_dev_lemmas']:,} "
        f"unseen lemmas; {settings['steps']} steps, seed {settings['seed']}; {hardware['cores']} cores "
        f"({hardware['device']}), torch {versions['torch']}, transformers {versions['transformers']}, commit "
        f"{(result['commit'] or 'unknown')[:10]}. For `{found['lemma']} {found['tags']}` {extent} {len(forms)} "
        f"({result['saved_head']} head): {likeliest}.",
    ]
    return "\n".join(lines)


@block
def inflection() -> str:
    """On the verbs that come with the recipe."""
    return comparison_of_heads("inflection")


@block
def sigmorphon() -> str:
    """On the shared task's English."""
    return comparison_of_heads("sigmorphon_english")


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
