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


def translation() -> str:
    """BLEU, chrF, REP and DROP of every system in the committed result of recipes/translation.py."""
    result = json.loads((ROOT / "recipes" / "results" / "multi30k.json").read_text(encoding="utf-8"))
    columns = (
        "cross-attention",
        "fertility",
        "search",
        "BLEU",
        "chrF",
        "REP",
        "REP, 5 worst left out",
        "DROP",
        "tokens attended a step",
    )
    columns += ("at all",)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in result["systems"]:
        fertility = row["fertility"] if isinstance(row["fertility"], str | None) else f"{row['fertility']:g}"
        penalty = row["penalty"]
        search = f"penalty, beta {penalty['beta']:g}, alpha {penalty['alpha']:g}" if penalty else "beam"
        lines.append(
            f"| {row['attention']} | {fertility or ''} | {search} | {row['bleu']:.2f} | {row['chrf']:.2f} | "
            f"{row['rep']:.2f} | {row['rep_without_worst']:.2f} | {row['drop']:.2f} | "
            f"{row['attended_at_a_step']:.1f} | {row['attended_share']:.0%} |"
        )
    data, settings, versions, hardware = (result[key] for key in ("data", "settings", "versions", "hardware"))
    example = result["example"]
    lines += [
        "",
        f"{data['train_rows']:,} pairs, {data['vocabulary']:,} subwords, {result['systems'][0]['parameters']:,} "
        f"parameters; {settings['base_steps']:,} steps with softmax that all systems share, then {settings['steps']} "
        f"of each system's own, of {settings['batch_size']} pairs; {data['test_rows']:,} test sentences, "
        f"{settings['beams']} beams; seed {settings['seed']}. BLEU and chrF by sacrebleu {versions['sacrebleu']}; REP "
        "and DROP on lower-cased words; the weights of the penalty are those of highest BLEU on "
        f"{data['dev_rows']} development sentences. One thread of a shared machine ({hardware['device']}, "
        f"{hardware['machine']}), torch {versions['torch']}, transformers {versions['transformers']}, commit "
        f"{(result['commit'] or 'unknown')[:10]}. {result['note']}",
        "",
        "The test sentence with translations short enough to draw in which softmax repeats most beyond constrained "
        "sparsemax:",
        "",
        "| | |",
        "|---|---|",
        f"| source | {example['source']} |",
        f"| reference | {example['reference']} |",
        *(f"| {name} | {text} |" for name, text in example["translations"].items()),
    ]
    return "\n".join(lines)


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


BLOCKS: dict[str, Callable[[], str]] = {
    "inflection": lambda: inflection("inflection"),
    "sigmorphon": lambda: inflection("sigmorphon_english"),
    "learning_rates": learning_rates,
    "speed": speed,
    "support": support,
    "translation": translation,
}
PAGES = ("README.md", "recipes/README.md", "benchmarks/README.md", "docs/coverage.md")
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
