"""docs/support.json, what the sweep found, and the table made from it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

from recipes.lib import markdown
from tests.sweep.architectures import MAPPINGS

DOCS = Path(__file__).resolve().parents[2] / "docs"
JSON, TABLE = DOCS / "support.json", DOCS / "support.md"
RESULTS = ("interface", "inline", "mixed", "refused", "cannot be built", "cannot be run", "FAILED")
LISTS = {
    "in parts": "Parts that a forward call of the whole model leaves out (towers, codecs) run in calls of their own.",
    "one key": "Modules in which every query sees a single key on so small an input, so no weight can be zero.",
    "without zeros": "Modules in which no weight became zero.",
    "not reached": "Modules that ran in no call.",
}
FURTHER = {
    "head": 'Loss and log-probabilities with `head="entmax15"`, for language models.',
    "generate": "Greedy decoding with a sparse head: the scores of every step are held to the sparse distribution of "
    "one forward call on the returned sequence, or *step by step* of every call made once more, and have its zeros. "
    "*By its ...*: an inner model decodes. A class without a result does not generate, or shows no head.",
    "saved": "Two models of one configuration object, with different maps, are saved and loaded; each has its own.",
    "inside": "Models inside the model, sparse by themselves where they have sparse attention or the head: they "
    "refuse to be made dense, also when they are called alone, and come back sparse when they are saved alone.",
}
NOTHING = ("does not generate", "no language-model head", "nothing to make sparse", "no models inside")
Found = dict[tuple[str, str, str], dict[str, Any]]


def read() -> Found:
    if not JSON.exists():
        return {}
    return {(e.pop("mapping"), e.pop("type"), e.pop("class")): e for e in json.loads(JSON.read_text())["entries"]}


def write(found: Found) -> None:
    order = sorted(found, key=lambda key: (MAPPINGS.index(key[0]), *key[1:]))
    data = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.partition("+")[0],
        "entries": [{"mapping": key[0], "type": key[1], "class": key[2], **found[key]} for key in order],
    }
    DOCS.mkdir(exist_ok=True)
    JSON.write_text(json.dumps(data, indent=1) + "\n")
    TABLE.write_text(table())


def table() -> str:
    """The table, from the JSON alone."""
    data = json.loads(JSON.read_text())
    entries = data["entries"]
    lines = [
        "# Supported architectures",
        "",
        f"Made by `python -m tests.sweep` with transformers {data['transformers']} and torch {data['torch']}.",
        "A tiny random model of every entry in Transformers' mappings of tasks (`MODEL_FOR_...`) is made sparse,",
        "`attn='entmax15'`, and checked. An entry of several mappings stands in the first of them.",
        "*interface*: through Transformers' attention interface; *inline*: by replacing the softmax inside an",
        "attention module; *mixed*: both. Modules that never ran, or never had an exact zero, would be listed below.",
        "`support.json` has every check of every entry; a check that the dense model itself fails is left out.",
        "",
    ]
    of = {m: Counter(entry["result"] for entry in entries if entry["mapping"] == m) for m in MAPPINGS}
    counts = [[m, str(of[m].total()), *(str(of[m][result]) for result in RESULTS)] for m in MAPPINGS]
    lines += [markdown.table(["mapping", "entries", *RESULTS], counts)]
    lines += ["", "## Classes", "", _table_of_classes(entries)]
    for result in RESULTS[3:]:
        chosen = [entry for entry in entries if entry["result"] == result]
        if chosen:
            classes: dict[str, str] = {entry["class"]: entry["reason"] for entry in chosen}
            lines += ["", f"## {result}", "", markdown.table(["class", "reason"], sorted(classes.items()))]
    for key, text in LISTS.items():
        rows = sorted({(entry["class"], ", ".join(entry[key])) for entry in entries if entry.get(key)})
        if rows:
            lines += ["", f"## {key.capitalize()}", "", text, "", markdown.table(["class", key], rows)]
    for check, text in FURTHER.items():
        results = Counter(_outcome(entry[check]) for entry in entries if check in entry)
        counted = [[result, str(count)] for result, count in results.most_common()]
        lines += ["", f"## {check.capitalize()}", "", text, "", markdown.table(["result", "entries"], counted)]
        failed = sorted({(e["class"], e[check]) for e in entries if e.get(check, "").startswith("FAILED")})
        lines += ["", *(f"- {name}: {reason}" for name, reason in failed)] if failed else []
    return "\n".join(lines) + "\n"


def _table_of_classes(entries: list[dict[str, Any]]) -> str:
    """A row per class, with what became of its attention and of every further check."""
    by_class = {entry["class"]: entry for entry in entries if not entry["result"].startswith("cannot")}
    rows = [
        [name, entry["result"], *(_outcome(entry.get(check, "")) for check in FURTHER)]
        for name, entry in sorted(by_class.items())
    ]
    return markdown.table(["class", "attention", *FURTHER], rows)


def _outcome(result: str) -> str:
    """The result of a check without its reason and its numbers; nothing where there is nothing to check."""
    short = result.partition(" (")[0].partition(":")[0]
    return "" if short in NOTHING else short
