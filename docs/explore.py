"""Make the output that docs/exploring.md shows, from models of recipes/inflection.py.

    python docs/explore.py          # trains five models (minutes each) into out/explore, or finds them there

It writes docs/exploring.json and pictures; `python docs/generate.py` then puts the JSON into the page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_sparse

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "recipes"))

import inflection  # noqa: E402

SEEDS = (0, 1, 2)
MODELS = [("entmax15", seed) for seed in SEEDS] + [("alpha_relu", 0), ("softmax", 0)]
EXAMPLE = {"lemma": "draw", "tags": "V;V.PTCP;PST"}
BEAMS = 5
BATCH = 128


def data() -> tuple[argparse.Namespace, Any, Any]:
    """The recipe's default settings, and its rows to train on and held out."""
    return inflection.parse_arguments([])


def trained(head: str, seed: int, folder: Path) -> Any:
    """The recipe's model of a head and a seed, from ``folder`` if an earlier run left it there."""
    path = folder / f"{head}-{seed}"
    if not path.is_dir():
        options, train_rows, dev_rows = data()
        options.seed = seed
        tokenizer = inflection.build_tokenizer(train_rows)
        model, _, _ = inflection.run_head(head, tokenizer, train_rows, dev_rows, options)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    return AutoModelForSeq2SeqLM.from_pretrained(path).eval()
