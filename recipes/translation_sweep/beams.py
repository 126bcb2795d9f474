"""Saved models of the sweep, decoded again: what the number of beams does to the likeliest translation found.

Softmax gives every string some probability, the empty one too, and a wider search finds more of the strings that are
likely for being short (Stahlberg and Byrne 2019, "On NMT Search Errors and Model Errors: Cat Got Your Tongue?"). A
sparse head can give them none.

    python -m recipes.translation_sweep.beams out/multi30k_15_epochs --beams 1 4 16 64
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_sparse  # noqa: F401  # sparse checkpoints come back sparse

from ..lib.environment import environment
from ..lib.records import Figures, Record, read_json, records_in, run_folder, write_json
from ..lib.summary import write_summary
from ..translation.data import words
from .measures import decode, scores
from .run import Sweep, runs, task_of, written


def main(arguments: Sequence[str] | None = None) -> list[Record]:
    """Decode what the command line asks for, and go on where an earlier command was interrupted.

    Returns:
        Records of every model and number of beams in the folder; they are in its ``beams`` as well.
    """
    parser = argparse.ArgumentParser(prog="python -m recipes.translation_sweep.beams", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of a sweep")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of its runs")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--summary", type=Path, help="file that is kept in git")
    options = parser.parse_args(arguments)
    transformers.logging.disable_progress_bar()
    chosen = [name for name in runs() if any(fnmatchcase(name, pattern) for pattern in options.only)]
    trained = records_in(options.out, chosen)
    if not trained:
        parser.error(f"{options.out} has no run of these names that is done")
    if min(options.beams) < 1:
        parser.error(f"beams must be at least 1, were {options.beams}")
    for record in trained:
        for beams in options.beams:
            again = decoded(record, beams, options.out)
            print(
                f"{again['run']:<20} seed {again['settings']['seed']}  beams {beams:3}  "
                + "  ".join(f"{name} {value:.3f}" for name, value in again["figures"].items()),
                flush=True,
            )
    records = [read_json(path) for path in sorted((options.out / "beams").glob("*.json"))]
    if options.summary:
        write_summary(options.summary, records, lambda figures: figures)
    return records


def decoded(trained: Record, beams: int, out: Path) -> Record:
    """The record of one model with one number of beams: read from its file, or made."""
    name, seed = trained["run"], trained["settings"]["seed"]
    path = out / "beams" / f"{name}-{seed}-{beams}.json"
    if path.is_file():
        return read_json(path)  # type: ignore[no-any-return]
    known = {field.name for field in dataclasses.fields(Sweep)}
    settings = Sweep(**{key: value for key, value in trained["settings"].items() if key in known} | {"beams": beams})
    start = time.process_time()
    figures = measured(settings, run_folder(out, name, seed))
    record = {
        "run": name,
        "settings": dataclasses.asdict(settings),
        "figures": figures,
        "cpu_seconds": round(time.process_time() - start, 1),
        **environment(),
    }
    write_json(path, record)
    return record


def measured(settings: Sweep, folder: Path) -> Figures:
    """Scores of the likeliest translations found, their length, and how often the empty one was found or preferred.

    ``length`` is the number of words of all translations as a multiple of the references'.
    """
    corpus, _, _ = task_of(settings)
    test = getattr(corpus, settings.part)[: settings.test_rows]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    texts, empty = decode(model, tokenizer, [pair.source for pair in test], settings.beams)
    references = [pair.target for pair in test]
    found: dict[str, Any] = scores(settings.metric, texts, references, written(settings))
    return {
        **found,
        **empty,
        "length": sum(len(words(text)) for text in texts) / sum(map(len, map(words, references))),
    }


if __name__ == "__main__":
    main()
