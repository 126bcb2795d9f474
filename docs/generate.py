"""Write the tables of the README files from committed results: `python docs/generate.py`; `--check` only compares."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def inflection(name: str) -> str:
    """The comparison of heads in one committed result of recipes/inflection.py."""
    result = json.loads((ROOT / "recipes" / "results" / f"{name}.json").read_text(encoding="utf-8"))
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


def learning_rates() -> str:
    """Which peak learning rates and initial weights each head learns with."""
    result = json.loads((ROOT / "recipes" / "results" / "learning_rates.json").read_text(encoding="utf-8"))
    heads = ("softmax", "entmax15", "alpha_relu")
    lines = [f"| init_std | peak learning rate | steps | {' | '.join(heads)} |", "|---" * 6 + "|"]
    for row in result["rows"]:
        cells = [f"{row[head]:.1f} %" if row[head] else "**0 %**" for head in heads]
        lines.append(f"| {row['init_std']} | {row['lr']:g} | {row['steps']} | {' | '.join(cells)} |")
    settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items())
    return "\n".join([*lines, "", f"{result['what']}; {settings}. Origin: {result['origin']}."])


def support() -> str:
    """How many architectures can be made sparse, by mapping."""
    result = json.loads((ROOT / "docs" / "support.json").read_text(encoding="utf-8"))
    counts: dict[str, Counter[str]] = {}
    for entry in result["entries"]:
        counts.setdefault(entry["mapping"], Counter())[entry["result"]] += 1
    works = ("interface", "inline", "mixed")
    other = sorted({name for count in counts.values() for name in count} - set(works))
    lines = [f"| mapping | works | {' | '.join(other)} |", "|---" * (2 + len(other)) + "|"]
    for mapping, count in counts.items():
        cells = [sum(count[name] for name in works), *(count[name] for name in other)]
        lines.append(f"| {mapping} | {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", f"transformers {result['transformers']}, torch {result['torch']}, random weights."])


def speed() -> str:
    """Every measured ratio that has a target, and where the target is missed."""
    result = json.loads((ROOT / "benchmarks" / "results" / "warm-cpu.json").read_text(encoding="utf-8"))
    machine = result["machine"]
    lines = ["| case | candidate | ratio | to | target | |", "|---|---|---|---|---|---|"]
    for row in result["rows"]:
        if row["target"] is not None:
            lines.append(
                f"| {row['case']} | {row['candidate']} | {row['ratio']:.2f} | {row['baseline']} | {row['target']:g} | "
                f"{row['verdict']} |"
            )
    lines += [
        "",
        f"{machine['cpu']} ({machine['capability']}), CPU time of one thread on a shared machine (load "
        f"{machine['load']:.1f}), {machine['allocator']} allocator, commit {machine['commit']}.",
    ]
    return "\n".join(lines)


CONVERSIONS = ("swap", "calibrate", "train", "anneal", "distil", "scratch")


def conversion() -> str:
    """The loss of every conversion beside that of the dense model, and how sparse the annealed models are."""
    result = json.loads((ROOT / "recipes" / "results" / "conversion.json").read_text(encoding="utf-8"))
    rows = {(row["model"], row["place"], row["way"]): row for row in result["rows"]}
    lines = ["| model | way | steps | attention | head | both |", "|---|---|---|---|---|---|"]
    for model in result["data"]:
        dense, base = rows[model, "none", "dense"], rows[model, "none", "continue"]
        lines.append(f"| {model} | dense | {dense['step']} | {dense['loss']:.3f} | | |")
        lines.append(f"| {model} | dense, trained on | {base['step']} | **{base['loss']:.3f}** | | |")
        for way in CONVERSIONS:
            found = [rows[model, place, way] for place in ("attention", "head", "both")]
            cells = [f"{row['loss']:.3f} ({row['loss'] / base['loss'] - 1:+.1%})" for row in found]
            lines.append(f"| {model} | {way} | {found[0]['step']} | {' | '.join(cells)} |")
    lines += [
        "",
        "| model | sparse | way | tokens possible | gold token impossible | accuracy | sparsemax score | "
        "loss at u = 0.1 % | at 10 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    order = list(result["data"])
    for (model, place, way), row in sorted(rows.items(), key=lambda item: order.index(item[0][0])):
        if place in ("none", "head"):
            lines.append(
                f"| {model} | {'-' if place == 'none' else place} | {way} | {row['support']:.0f} | "
                f"{row['missed']:.1%} | {row['accuracy']:.1%} | {row['sparsemax_score']:.3f} | "
                f"{row['loss_at']['0.001']:.3f} | {row['loss_at']['0.1']:.3f} |"
            )
    reached = [
        f"{model}, sparse {place} ({row['loss'] / rows[model, 'none', 'continue']['loss'] - 1:+.2%})"
        for (model, place, way), row in rows.items()
        if way == "anneal" and row["loss"] <= 1.01 * rows[model, "none", "continue"]["loss"]
    ]
    lines += [
        "",
        f"Within 1 % of the dense model trained on, after calibrate and anneal: {'; '.join(reached) or 'none'}.",
    ]
    settings, hardware, versions = result["settings"], result["hardware"], result["versions"]
    commit = (result["commit"] or "unknown")[:10]
    data = "; ".join(
        f"{model}: {entry['what']}, {entry['train_rows']:,} rows to train on, {entry['dev_rows']:,} held out, "
        f"{entry['vocabulary']:,} tokens, {entry['parameters']:,} parameters"
        for model, entry in result["data"].items()
    )
    seconds = sum(row["cpu_seconds"] for row in result["rows"])
    lines += [
        "",
        f"{data}. entmax, alpha {settings['alpha']:g}; {settings['steps']} and {settings['conversion_steps']} steps "
        f"of {settings['batch_size']} rows, alpha annealed over {settings['anneal_over']:.0%} of the latter; one run "
        f"each, seed {settings['seed']}; {seconds / 60:.0f} minutes of one core ({hardware['device']}), torch "
        f"{versions['torch']}, transformers {versions['transformers']}, commit {commit}.",
    ]
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "conversion": conversion,
    "inflection": lambda: inflection("inflection"),
    "sigmorphon": lambda: inflection("sigmorphon_english"),
    "learning_rates": learning_rates,
    "speed": speed,
    "support": support,
}
PAGES = ("README.md", "docs/annealing.md", "recipes/README.md", "benchmarks/README.md")
BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def filled(text: str) -> str:
    """``text`` with every block between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]().strip()}\n{match[3]}", text)


def main(arguments: list[str]) -> int:
    """Write all pages, or with ``--check`` tell whether they are up to date."""
    stale = []
    for page in PAGES:
        path = ROOT / page
        current = path.read_text(encoding="utf-8")
        made = filled(current)
        if made != current:
            stale.append(page)
            if arguments != ["--check"]:
                path.write_text(made, encoding="utf-8")
    if arguments == ["--check"] and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
