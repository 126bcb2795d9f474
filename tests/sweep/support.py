"""docs/support.json, what the sweep found, and the table made from it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

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
        "A tiny random model of every entry in Transformers' mappings is made sparse, `attn='entmax15'`, and checked.",
        "*interface*: through Transformers' attention interface; *inline*: by replacing the softmax inside an",
        "attention module; *mixed*: both. Modules that never ran, or never had an exact zero, would be listed below.",
        "`support.json` has every check of every entry; a check that the dense model itself fails is left out.",
        "",
        "| mapping | entries | " + " | ".join(RESULTS) + " |",
        "|---|" + "---|" * (len(RESULTS) + 1),
    ]
    for mapping in MAPPINGS:
        of = Counter(entry["result"] for entry in entries if entry["mapping"] == mapping)
        counts = " | ".join(str(of[result]) for result in RESULTS)
        lines.append(f"| {mapping} | {of.total()} | {counts} |")
    for result in RESULTS:
        chosen = [entry for entry in entries if entry["result"] == result]
        if not chosen:
            continue
        lines += ["", f"## {result}", ""]
        if "reason" in chosen[0]:
            classes: dict[str, str] = {entry["class"]: entry["reason"] for entry in chosen}
            lines += ["| class | reason |", "|---|---|"]
            lines += [f"| {name} | {reason.replace('|', ' ')} |" for name, reason in sorted(classes.items())]
        else:
            lines.append(", ".join(sorted({entry["class"] for entry in chosen})))
    for key, text in LISTS.items():
        rows = sorted({(entry["class"], ", ".join(entry[key])) for entry in entries if entry.get(key)})
        if rows:
            lines += ["", f"## {key.capitalize()}", "", text, "", f"| class | {key} |", "|---|---|"]
            lines += [f"| {name} | {modules} |" for name, modules in rows]
    heads = Counter(entry["head"].partition(" (")[0].partition(":")[0] for entry in entries if "head" in entry)
    lines += ["", "## Heads", "", 'Loss and log-probabilities with `head="entmax15"`, for language models.', ""]
    lines += ["| result | entries |", "|---|---|"]
    lines += [f"| {head} | {count} |" for head, count in heads.most_common()]
    failed = sorted({(e["class"], e["head"]) for e in entries if e.get("head", "").startswith("FAILED")})
    lines += [f"- {name}: {reason}" for name, reason in failed]
    return "\n".join(lines) + "\n"
