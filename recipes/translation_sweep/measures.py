"""Measures of a translation model: scores, the empty string, supports, and logits during training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

import hf_sparse
from hf_sparse.attention import attention_sites, observe
from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax_threshold
from hf_sparse.metrics import logit_norm, self_normalization_sum

from ..lib.batches import by_length
from ..lib.models import learned_by_layer
from ..lib.records import Figures
from ..translation.data import Pair
from ..translation.measures import bleu_of
from ..translation.model import as_read
from ..translation.systems import attention_of

LONGEST_PICTURED = 14  # tokens
METRICS = ("bleu", "rouge")
RESAMPLED = 200  # times the sentences are drawn again
LIKELIEST: dict[str, Any] = {"length_penalty": 0.0, "early_stopping": "never"}  # beam search for the likeliest string


def head_map(model: PreTrainedModel) -> MapConfig:
    """Map at the output of a model."""
    return (hf_sparse.sparse_config(model).head if hf_sparse.is_sparse(model) else None) or MapConfig("softmax")


class Curve(TrainerCallback):
    """Adds logits, thresholds and supports on some held-out pairs to Trainer's log, which checkpoints keep.

    Args:
        batch: the pairs, as the model takes them.
        every: number of steps between two points.
    """

    def __init__(self, batch: Any, every: int) -> None:
        self.batch, self.every = batch, every

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure the untrained model."""
        if state.global_step == 0:
            self.measure(model, state)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure every ``every`` steps."""
        if state.global_step % self.every == 0:
            self.measure(model, state)

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, state: Any) -> None:
        """Add one point: means over the target tokens."""
        model.eval()
        batch = {name: values.to(model.device) for name, values in self.batch.items()}
        counted = batch["labels"] != -100
        z, gold = model(**batch).logits[counted].float(), batch["labels"][counted]
        map_config = head_map(model)
        p = map_config(z)
        model.train()
        state.log_history.append(
            {
                "step": state.global_step,
                "logit_norm": float(logit_norm(z).mean()),
                "threshold": float(entmax_threshold(z / map_config.temperature, 1.5).mean()),
                "head_support": float((p > 0).sum(-1).float().mean()),
                "head_sum": float(self_normalization_sum(p).mean()),
                "accuracy": float((z.argmax(-1) == gold).float().mean()),
            }
        )


@torch.no_grad()
def decode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sources: Sequence[str], beams: int
) -> tuple[list[str], dict[str, float]]:
    """Translate by beam search for the likeliest string.

    Returns:
        The translations; ``empty_preferred``, the share of sentences whose empty translation is likelier than the one
        found; ``empty_found``, the share for which the empty one was found.
    """
    model.eval()
    texts, preferred, empty = [""] * len(sources), 0, 0
    search = LIKELIEST if beams > 1 else {}
    for batch, inputs in _batches(model, tokenizer, sources):
        compared = hf_sparse.compare_with_empty(model, inputs, beams, **search, max_new_tokens=_longest(model, inputs))
        for index, text in zip(batch, tokenizer.batch_decode(compared.hypotheses, skip_special_tokens=True)):
            texts[index] = text
        preferred += int(compared.preferred.sum())
        empty += int(compared.found_empty.sum())
    return texts, {"empty_preferred": preferred / len(sources), "empty_found": empty / len(sources)}


@torch.no_grad()
def certificates(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sources: Sequence[str], beams: int
) -> dict[str, float]:
    """What beam search can prove of its translations.

    Returns:
        ``all_seen``, the share of sentences for which it saw every string of nonzero probability; ``certified``, the
        share whose translation is proved to be the likeliest, by that or by a bound.
    """
    model.eval()
    proofs = []
    for _, inputs in _batches(model, tokenizer, sources):
        output = model.generate(
            **inputs,
            **LIKELIEST,
            num_beams=beams,
            do_sample=False,
            max_new_tokens=_longest(model, inputs),
            return_dict_in_generate=True,
            output_scores=True,
        )
        proofs += hf_sparse.beam_certificate(model, output, beams)
    return {
        "all_seen": fmean(proof.exhausted for proof in proofs),
        "certified": fmean(proof.bounded for proof in proofs),
    }


@torch.no_grad()
def decode_normalized(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sources: Sequence[str], beams: int
) -> list[str]:
    """Translate by the beam search that ``generate`` does by itself, which divides by the length."""
    model.eval()
    texts = [""] * len(sources)
    for batch, inputs in _batches(model, tokenizer, sources):
        output = model.generate(**inputs, num_beams=beams, do_sample=False, max_new_tokens=_longest(model, inputs))
        for index, text in zip(batch, tokenizer.batch_decode(output, skip_special_tokens=True)):
            texts[index] = text
    return texts


def _batches(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sources: Sequence[str]
) -> Iterator[tuple[list[int], BatchEncoding]]:
    for batch in by_length(sources, 50):
        yield batch, as_read([sources[index] for index in batch], tokenizer).to(model.device)


def _longest(model: PreTrainedModel, inputs: BatchEncoding) -> int:
    """The most new tokens of a translation."""
    return min(2 * inputs.input_ids.shape[1] + 10, model.generation_config.max_new_tokens)


@torch.no_grad()
def forced_figures(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[Pair]) -> Figures:
    """Right and missed next tokens, supports of head and cross-attention, and sums of weights, references forced."""
    model.eval()
    map_config, supports, sums, keys = head_map(model), [], [], 0
    right: list[bool] = []
    missed: list[bool] = []
    cross = {site.path for _, site in attention_sites(model) if site.kind == "cross"}
    with observe(model) as counts:
        for pair in pairs:  # one by one: padding would count
            inputs = as_read(pair.source, tokenizer).to(model.device)
            labels = as_read(pair.target, tokenizer).input_ids.to(model.device)
            z = model(**inputs, labels=labels).logits[0].float()
            weights = map_config(z)
            right += (z.argmax(-1) == labels[0]).tolist()
            missed += (weights.gather(-1, labels[0, :, None])[:, 0] == 0).tolist()
            supports += (weights > 0).sum(-1).tolist()
            sums += self_normalization_sum(weights).tolist()
            keys += labels.shape[1] * inputs.input_ids.shape[1]
    seen = [count for path, count in counts.items() if path in cross]
    attended = sum(count.nonzero for count in seen) / sum(count.rows for count in seen) if seen else keys / len(sums)
    share = sum(count.nonzero for count in seen) / sum(count.keys for count in seen) if seen else 1.0
    histogram = Counter(math.ceil(math.log2(max(size, 1))) for size in supports)
    return {
        "accuracy": fmean(right),
        "missed": fmean(missed),
        "head_support": fmean(supports),
        "head_support_histogram": {str(2**power): histogram[power] for power in sorted(histogram)},
        "head_sum": {"mean": fmean(sums), "std": pstdev(sums)},
        "attended": attended,
        "attended_share": share,
    }


def alphas(model: PreTrainedModel) -> Figures:
    """``alphas`` that attention learns: by each kind that does, a list of layers, each of heads; {} if none does."""
    kinds = dict.fromkeys(site.kind for _, site in attention_sites(model))
    learned = {kind: learned_by_layer(model, kind) for kind in kinds}
    found = {kind: values["alpha"] for kind, values in learned.items() if "alpha" in values}
    return {"alphas": found} if found else {}


def scores(metric: str, texts: Sequence[str], references: Sequence[str], language: str = "en") -> dict[str, float]:
    """BLEU and chrF of sacrebleu, BLEU as it is counted in ``language``; or ROUGE F1 in percent.

    ``bleu_interval`` is half of the 95 % interval of BLEU that sentences drawn again give: of these sentences and this
    model, not of other seeds.

    Raises:
        ValueError: the metric is neither ``"bleu"`` nor ``"rouge"``.
    """
    if metric == "bleu":
        import sacrebleu

        counted = bleu_of(language)

        def bleu(rows: Sequence[int]) -> float:
            return counted.corpus_score([texts[row] for row in rows], [[references[row] for row in rows]]).score

        rows, random = range(len(texts)), Random(0)
        return {
            "bleu": bleu(rows),
            "bleu_interval": 1.96 * pstdev(bleu(random.choices(rows, k=len(rows))) for _ in range(RESAMPLED)),
            "chrf": sacrebleu.corpus_chrf(texts, [references]).score,
        }
    if metric == "rouge":
        from rouge_score.rouge_scorer import RougeScorer

        names = ("rouge1", "rouge2", "rougeL")
        rows = [RougeScorer(names, use_stemmer=True).score(*both) for both in zip(references, texts)]
        return {name: 100 * fmean(row[name].fmeasure for row in rows) for name in names}
    raise ValueError(f"metric must be bleu or rouge, was {metric!r}")


def example(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Cross-attention in the first short pair, for the pictures; see ``attention_of``."""
    if not attention_sites(model):
        model.set_attn_implementation("eager")  # other implementations do not return weights
    lengths = [max(len(tokenizer(text).input_ids) for text in pair) for pair in pairs]
    pair = next((pair for pair, length in zip(pairs, lengths) if 8 <= length <= LONGEST_PICTURED), pairs[0])
    weights: Tensor = attention_of(model, tokenizer, [pair])[0]
    keys, queries = (tokenizer.convert_ids_to_tokens(as_read(text, tokenizer).input_ids[0]) for text in pair)
    return {"keys": keys, "queries": queries, "weights": [[round(w, 4) for w in row] for row in weights.tolist()]}
