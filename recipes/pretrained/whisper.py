"""Whisper with sparse attention: word error rates, times of words. With a sparse head: proofs of transcripts."""

from __future__ import annotations

import copy
import time
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, WhisperProcessor, pipeline
from transformers.models.whisper.english_normalizer import BasicTextNormalizer

import hf_sparse
from hf_sparse.attention.soft_edges import soft_edges

from ..lib.models import config_of, save
from ..lib.records import Figures
from ..lib.training import DenseTrainer
from .speech import PROMPT, RATE, Clip, batches, clips, load_whisper, transcripts, word_by_word
from .trained import arguments

FEW = 8  # clips: to calibrate on before training, and to count zeros on


def error_rate(written: list[str], heard: list[Clip]) -> float:
    """Words that are wrong, missing or too many, as a share of those that were said; case and punctuation aside."""
    plain = BasicTextNormalizer()
    return float(jiwer.wer([plain(clip.text) for clip in heard], [plain(text) for text in written]))


def _dense_figures(model: PreTrainedModel, processor: WhisperProcessor, test: list[Clip]) -> Figures:
    """The word error rate of a dense model, and what it was measured on."""
    words = sum(len(clip.text.split()) for clip in test)
    return {"dense": error_rate(transcripts(model, processor, test), test), "utterances": len(test), "words": words}


def _save(model: PreTrainedModel, processor: WhisperProcessor, folder: Path) -> None:
    save(model, processor.tokenizer, folder)
    processor.save_pretrained(folder / "model")


def attention(settings: Any, folder: Path) -> Figures:
    """Word error rate with dense, swapped and calibrated attention of some kinds."""
    model, processor = load_whisper(settings.source)
    fit, test = _speech(settings, processor)
    batch = batches(processor, fit)
    figures = _dense_figures(model, processor, test)
    hf_sparse.sparsify(model, attn=dict.fromkeys(settings.kinds, settings.map), example=batch[0])
    figures["swapped"] = error_rate(transcripts(model, processor, test), test)
    print(figures, flush=True)
    start = time.process_time()
    hf_sparse.calibrate(model, batch, edges=settings.edges or None, progress=False)
    figures["calibration_cpu_seconds"] = round(time.process_time() - start, 1)
    figures["calibrated"] = error_rate(transcripts(model, processor, test), test)
    figures["zeros"] = _zeros(model, batches(processor, test[:FEW]))
    _save(model, processor, folder)
    return {**figures, "config": config_of(model)}


@torch.no_grad()
def _zeros(model: PreTrainedModel, heard: list[dict[str, torch.Tensor]]) -> float:
    """Share of visible keys without weight, over the sparse attention of some clips with their sentences."""
    with soft_edges(model) as edges:
        for batch in heard:
            model(**batch)
    return 1 - edges.kept / edges.visible


def trained(settings: Any, folder: Path) -> Figures:
    """All attention and the head sparse, trained with as many clips as a dense model: word error rates of both."""
    dense, processor = load_whisper(settings.source)
    fit, test = _speech(settings, processor)
    batch = batches(processor, fit)
    figures = _dense_figures(dense, processor, test)
    model = copy.deepcopy(dense)
    attn = dict.fromkeys(("encoder", "decoder", "cross"), settings.map)
    hf_sparse.sparsify(model, attn=attn, head=settings.map, example=batch[0])
    hf_sparse.calibrate(model, batch[:FEW], edges=settings.edges or None, progress=False)
    figures["calibrated"] = error_rate(transcripts(model, processor, test), test)
    figures["calibrated_possible"], figures["calibrated_classes"] = _supports(model, processor, test)
    print(figures, flush=True)
    options = arguments(settings, folder, remove_unused_columns=False)
    for each, trainer in ((dense, DenseTrainer), (model, hf_sparse.SparseTrainer)):
        trainer(each, options, train_dataset=batch, data_collator=_collated).train()
        each.eval()
    figures["continued"] = error_rate(transcripts(dense, processor, test), test)
    figures["trained"] = error_rate(transcripts(model, processor, test), test)
    figures["possible"], figures["classes"] = _supports(model, processor, test)
    figures["zeros"] = _zeros(model, batches(processor, test[:FEW]))
    print(figures, flush=True)
    _save(model, processor, folder)
    return {**figures, "config": config_of(model)}


def _collated(clips: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Clips in one batch; what follows a sentence has no label, whatever token it is."""
    padded = {
        name: pad_sequence([clip[name][0] for clip in clips], batch_first=True, padding_value=value)
        for name, value in (("decoder_input_ids", 0), ("labels", -100))
    }
    return {"input_features": torch.cat([clip["input_features"] for clip in clips]), **padded}


def head(settings: Any, folder: Path) -> Figures:
    """Heads with a goal: a promised coverage, or few classes. What they hold, and transcripts proved likeliest."""
    model, processor = load_whisper(settings.source)
    fit, test = _speech(settings, processor)
    batch, proved = batches(processor, fit), test[: settings.proofs]
    hf_sparse.sparsify(model, head="entmax15", example=batch[0])
    figures: Figures = {"asked": settings.coverage[-1], "utterances": len(test), "proof_utterances": len(proved)}
    for goal in ({"coverage": settings.coverage[-1]}, {"classes": settings.proof_classes}):
        hf_sparse.calibrate(model, batch, **goal, progress=False)
        possible, classes = _supports(model, processor, test)
        proofs = {name: _proofs(way, model, proved) for name, way in WAYS.items()}
        figures["".join(goal)] = {"found": possible, "support": classes, "proofs": proofs}
        print(figures, flush=True)
    _save(model, processor, folder)
    return {**figures, "config": config_of(model)}


def times(settings: Any, folder: Path) -> Figures:
    """Where words begin, by dense cross-attention and by sparse: the mean distance from where they were put."""
    dense, processor = load_whisper(settings.source)
    fit, test = _speech(settings, processor)
    said = [word_by_word(clip.text, settings.voices[0]) for clip in test]
    figures: Figures = {"dense": _time_errors(dense, processor, said, test), "utterances": len(test)}
    model = copy.deepcopy(dense)
    batch = batches(processor, fit)
    hf_sparse.sparsify(model, attn={"cross": settings.map}, example=batch[0])
    figures["swapped"] = _time_errors(model, processor, said, test)
    hf_sparse.calibrate(model, batch, edges=settings.edges or None, progress=False)
    with soft_edges(model) as edges:
        figures["calibrated"] = _time_errors(model, processor, said, test)
    figures["zeros"] = 1 - edges.kept / edges.visible
    return figures


def _time_errors(
    model: PreTrainedModel, processor: WhisperProcessor, said: list[tuple[np.ndarray, list[float]]], heard: list[Clip]
) -> dict[str, float]:
    """Mean error in seconds over the words that were heard as they were said, and the number of these."""
    listen = pipeline(
        "automatic-speech-recognition",
        model=model,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
    )
    plain, errors = BasicTextNormalizer(), []
    for (sound, starts), clip in zip(said, heard):
        input = {"raw": sound, "sampling_rate": RATE}
        chunks = listen(input, return_timestamps="word", generate_kwargs={**PROMPT, "max_new_tokens": 60})["chunks"]
        words = [plain(word).strip() for word in clip.text.split()]
        found = [plain(chunk["text"]).strip() for chunk in chunks]
        for block in SequenceMatcher(None, words, found, autojunk=False).get_matching_blocks():
            for i in range(block.size):
                errors.append(abs(chunks[block.b + i]["timestamp"][0] - starts[block.a + i]))
    print(type(model).__name__, sum(errors) / len(errors), len(errors), flush=True)
    return {"seconds": sum(errors) / len(errors), "words": len(errors)}


def _speech(settings: Any, processor: WhisperProcessor) -> tuple[list[Clip], list[Clip]]:
    """Clips to fit on and to judge on: other sentences, other voices."""
    path, seed = Path(settings.data), settings.seed
    fit = clips(processor, path, settings.fit_voices, settings.fit_rows, settings.noise, 0, seed)
    return fit, clips(processor, path, settings.voices, settings.rows, settings.noise, 1, seed + 1)


@torch.no_grad()
def _supports(model: PreTrainedModel, processor: WhisperProcessor, heard: list[Clip]) -> tuple[float, float]:
    """Share of tokens that are possible, and mean number of possible classes, given the true beginning."""
    possible, classes = [], []
    for batch in batches(processor, heard):
        labels = batch["labels"][0]
        p = hf_sparse.probabilities(model, model(**batch).logits)[0, labels != -100]
        possible.append(p.gather(-1, labels[labels != -100, None])[:, 0] > 0)
        classes.append((p > 0).sum(-1))
    return float(torch.cat(possible).double().mean()), float(torch.cat(classes).double().mean())


def _greedy(model: Any, features: torch.Tensor) -> bool:
    """Whether the greedy transcript is the one that search proves likeliest."""
    greedy = model.generate(input_features=features, **PROMPT, max_new_tokens=60, return_dict_in_generate=True)
    (found,) = hf_sparse.exact_search(model, {"input_features": features}, max_new_tokens=60, **PROMPT)
    tokens = greedy.sequences[0].tolist()
    best = list(found.best.tokens)
    return found.certificate is not None and tokens[len(tokens) - len(best) :] == best


def _beams(model: Any, features: torch.Tensor) -> bool:
    """Whether five beams are proved to have found the likeliest transcript."""
    options = {"num_beams": 5, "max_new_tokens": 60, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(input_features=features, **PROMPT, **options)
    (found,) = hf_sparse.beam_certificate(model, output, 5)
    return found.certificate is not None


def _search(model: Any, features: torch.Tensor) -> bool:
    """Whether exact search proves its transcript."""
    (found,) = hf_sparse.exact_search(model, {"input_features": features}, max_new_tokens=60, **PROMPT)
    return found.certificate is not None


WAYS = {"greedy": _greedy, "beam 5": _beams, "exact_search": _search}


def _proofs(way: Any, model: PreTrainedModel, heard: list[Clip]) -> dict[str, float]:
    """Share of utterances whose transcript is proved likeliest, and CPU seconds for one."""
    start = time.process_time()
    proved = [way(model, clip.features) for clip in heard]
    seconds = (time.process_time() - start) / len(heard)
    print(way.__name__, proved, seconds, flush=True)
    return {"proved": sum(proved) / len(proved), "cpu_seconds": round(seconds, 2)}
