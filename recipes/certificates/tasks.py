"""The three tasks: a translator trained here, a pretrained language model, the decoder of a speech recogniser."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import MarianMTModel, PreTrainedModel, PreTrainedTokenizerBase

import hf_sparse
from hf_sparse.generation.labels import token_labels

from ..lib.batches import padding_collator
from ..lib.records import Figures
from ..lib.training import train
from ..pretrained.data import windows
from ..pretrained.language import token_loss
from ..pretrained.sources import load
from ..pretrained.speech import PROMPT, batches, load_whisper
from ..pretrained.whisper import fit_and_test
from ..translation.data import Corpus, Pair, read_named
from ..translation.model import as_read, build_model, prepared
from .data import one_by_one, sentences
from .frames import certified_frames
from .proofs import certified
from .systems import edges_of, first_layers, sparse_copies

Batches = Sequence[Mapping[str, Tensor]]
# Map and heads of the translators that are trained with their map.
TRAINED = {"entmax15": ("entmax15", 4), "sparsemax": ("sparsemax", 4), "sparsemax, one head": ("sparsemax", 1)}


@torch.no_grad()
def accuracy(model: PreTrainedModel, forced: Batches) -> float:
    """Share of the labels that are the likeliest next token, given those before."""
    right = []
    for batch in forced:
        counted = batch["labels"] != -100
        right.append(model(**batch).logits.argmax(-1)[counted] == batch["labels"][counted])
    return float(torch.cat(right).double().mean())


def pairs_of(settings: Any) -> Corpus:
    """The corpus of a translator; raises as ``read_named`` does."""
    return read_named(settings.data, "de", "en")


def translation(settings: Any, folder: Path) -> Figures:
    """Train a dense translator and sparse ones of some layers, and certify what they write about sentences."""
    task = prepared(pairs_of(settings), settings.vocabulary)
    dense = _trained(settings, task.tokenizer, task.rows, None, folder / "dense")
    fit = list(sentences(task.tokenizer, task.corpus.dev[: settings.fit_rows]))
    test = task.corpus.test[: settings.rows]
    figures: Figures = {"ways": [], "dense": accuracy(dense, list(sentences(task.tokenizer, test)))}
    for way, model in _translators(dense, fit, settings, task.tokenizer, task.rows, folder):
        figures["ways"].append(_translated(way, model, task.tokenizer, test, settings))
        print(figures["ways"][-1], flush=True)
        if way == settings.shown:
            figures["example"] = _example(model, task.tokenizer, test[settings.shown_row % len(test)], settings)
    return figures


def _translators(
    dense: PreTrainedModel,
    fit: Batches,
    settings: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
    folder: Path,
) -> Iterator[tuple[str, PreTrainedModel]]:
    """Translators by what was done: calibrated ones, and some trained with their map."""
    yield from sparse_copies(dense, fit, settings.edges, swapped=())
    for name, (attn, heads) in TRAINED.items():
        own = folder / name.replace(", ", "-").replace(" ", "-")
        yield f"{name}, trained", _trained(settings, tokenizer, rows, attn, own, heads)


def _trained(
    settings: Any, tokenizer: PreTrainedTokenizerBase, rows: Dataset, attn: str | None, folder: Path, heads: int = 4
) -> PreTrainedModel:
    """A translator, trained from the last checkpoint in ``folder``, which no other translator may share."""
    config = copy.deepcopy(build_model(tokenizer, settings.seed).config)  # type: ignore[arg-type]
    config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim = settings.width, *2 * [4 * settings.width]
    config.encoder_layers = config.decoder_layers = settings.layers
    config.encoder_attention_heads = config.decoder_attention_heads = heads
    model: PreTrainedModel = MarianMTModel(config)
    model.generation_config.bad_words_ids = [[config.pad_token_id]]  # the start token is the padding token
    if attn is not None:
        model = hf_sparse.sparsify(model, attn=attn)
    train(
        model,
        tokenizer,
        rows,
        folder,
        collator=padding_collator(tokenizer, model),
        steps=settings.steps,
        lr=settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        report_to=settings.report_to,
    )
    return model.eval()


def _translated(
    way: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, test: Sequence[Pair], settings: Any
) -> Figures:
    """Figures of one translator: what it costs, and what is certified of its own greedy translations."""
    forced = list(sentences(tokenizer, test))
    own = {"way": way, "depth": settings.layers, "quality": accuracy(model, forced), "edges": edges_of(model, forced)}
    model.double()
    inputs = as_read([pair.source for pair in test], tokenizer)
    return {**own, **certified(model, [(inputs, _written(model, inputs, settings.outputs))]).figures()}


def _written(model: PreTrainedModel, inputs: Mapping[str, Tensor], outputs: int) -> Tensor:
    return model.generate(**inputs, max_new_tokens=outputs, do_sample=False)  # type: ignore[operator, no-any-return]


def _example(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pair: Pair, settings: Any) -> Figures:
    """One certificate with its tokens as text, for the picture."""
    inputs = as_read(pair.source, tokenizer)
    sequence = _written(model, inputs, settings.outputs)
    (found,) = hf_sparse.certify(model, inputs, sequence)
    return {
        "inputs": token_labels(inputs["input_ids"][0].tolist(), tokenizer),
        "outputs": token_labels(sequence[0, 1:].tolist(), tokenizer),
        "tokens": found.tokens,
        "needed": {str(output): columns for output, columns in found.needed.items()},
        "change": found.change,
    }


def language(settings: Any, folder: Path) -> Figures:
    """Certify the continuations that a text itself has, by a pretrained model and by its first layers alone."""
    dense, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    shown = test[:, : settings.prompt + settings.outputs]
    cases = [({"input_ids": shown[:, : settings.prompt]}, shown)]
    figures: Figures = {"ways": [], "dense": token_loss(dense, test)}
    for way, model in _ways(dense, one_by_one(fit), settings):
        own = {"way": way, "quality": token_loss(model, test), "edges": edges_of(model, one_by_one(test))}
        for depth in _depths(settings, model.config.num_hidden_layers):
            tally = certified(first_layers(model, depth), cases)
            figures["ways"].append({**own, "depth": depth, **tally.figures()})
            print(figures["ways"][-1], flush=True)
    return figures


def speech(settings: Any, folder: Path) -> Figures:
    """Encoder states that true transcripts can do without, by a recogniser's decoder and by its first layers alone."""
    dense, processor = load_whisper(settings.source)
    fit, test = (batches(processor, heard) for heard in fit_and_test(settings, processor, settings.rows))
    sequences, skip = [batch["decoder_input_ids"] for batch in test], int((test[0]["labels"][0] == -100).sum())
    figures: Figures = {"ways": [], "dense": accuracy(dense, test), "prompt": PROMPT}
    for way, model in _ways(dense, fit, settings, ("decoder", "cross")):
        own = {"way": way, "quality": accuracy(model, test), "edges": edges_of(model, test)}
        with torch.no_grad():
            states = [model.get_encoder()(batch["input_features"]).last_hidden_state.double() for batch in test]
        figures["refused"] = _refusal(model, test[0])
        for depth in _depths(settings, model.config.decoder_layers):
            tally = certified_frames(first_layers(model, depth), states, sequences, skip)
            figures["ways"].append({**own, "depth": depth, **tally.figures()})
            print(figures["ways"][-1], flush=True)
    return figures


def _ways(
    dense: PreTrainedModel, fit: Batches, settings: Any, kinds: Sequence[str] = ()
) -> Iterator[tuple[str, PreTrainedModel]]:
    """Sparse models by what was done: copies of a pretrained one, and one that was trained, if there is one."""
    yield from sparse_copies(dense, fit, settings.edges, kinds)
    if settings.trained:
        yield "trained", hf_sparse.from_pretrained(settings.trained).eval()


def _refusal(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> str:
    """What ``certify`` says of sound."""
    try:
        hf_sparse.certify(model, {"input_features": batch["input_features"]}, batch["decoder_input_ids"])
    except ValueError as error:
        return str(error)
    raise AssertionError("sound cannot be deleted frame by frame")


def _depths(settings: Any, whole: int) -> list[int]:
    return [*(depth for depth in settings.depths if depth < whole), whole]
