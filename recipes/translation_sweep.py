"""Translation with every map at the output and in attention, each trained from scratch.

A small Marian model learns German to English, and English to German, for a few hundred steps: softmax, sparsemax,
entmax and alpha-ReLU (Peters et al. 2019, Tables 2 and 3, Figure 4; Tezekbayev et al. 2022, Tables 1 and 2, Figures 5
to 9), a finer grid of alpha, smoothed targets, other thresholds of alpha-ReLU, and cross-attention whose sparsity is
controlled by one number (Laha et al. 2018, Section 5.2). Reported are BLEU or ROUGE, words a second in training, how
often the empty string is preferred, supports, and how thresholds and logits move while a model learns.

    python recipes/translation_sweep.py --list
    python recipes/translation_sweep.py --quick --only softmax entmax15
    python recipes/translation_sweep.py --data multi30k --only '*softmax' 'entmax*'
    python recipes/translation_sweep.py --data headlines.tsv --set metric=rouge    # article TAB headline
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from study import Settings, main, setting
from torch import Tensor
from training import StepSeconds, train
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback
from translation_corpus import Pair
from translation_sweep_report import report
from translation_systems import attention_of
from translation_training import Collator, build_model, encode, prepared

import hf_sparse
from hf_sparse.attention import attention_sites, observe
from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax_threshold
from hf_sparse.metrics import logit_norm, self_normalization_sum

LONGEST_PICTURED = 14  # tokens
CURVE_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Sweep(Settings):
    """One run: data, maps, and training."""

    data: str = setting("", "IWSLT 2017, KFTT, WMT 2016", "Peters et al. 2019, 4.2")
    source: str = setting("de")
    target: str = setting("en")
    reverse: bool = setting(False)
    train_rows: int = setting(0, "206,112 of de-en", "Peters et al. 2019, 4.2")  # 0: all
    test_rows: int = setting(200)
    vocabulary: int = setting(600, "32k merges, joint", "Peters et al. 2019, 4.2")
    head: str | Mapping[str, Any] | None = setting(
        None, "softmax, 1.5-entmax, sparsemax; 1.5-ReLU", "Peters et al. 2019, 4; Tezekbayev et al. 2022, 3"
    )
    attention: str | Mapping[str, Any] | None = setting(
        None, "that of the head; softmax", "Peters et al. 2019, Table 2; Tezekbayev et al. 2022, 3"
    )
    label_smoothing: float = setting(0.0, "0", "Peters et al. 2019, 4")
    steps: int = setting(480, "100,000", "Peters et al. 2019, 4.2")
    batch_size: int = setting(32, "64", "Peters et al. 2019, 4")
    lr: float = setting(2e-3, "0.001, halved on plateaus", "Peters et al. 2019, 4")
    beams: int = setting(4, "5", "Peters et al. 2019, 4")
    metric: str = setting("bleu", "BLEU; ROUGE of headlines", "Laha et al. 2018, Table 2")
    report_to: str = setting("none")


def entmax(alpha: float) -> Any:
    """The map of the entmax family at ``alpha``; None for softmax, which is left as it is."""
    return {1: None, 1.5: "entmax15", 2: "sparsemax"}.get(alpha, {"name": "entmax", "alpha": alpha})


def runs() -> dict[str, Sweep]:
    """All runs, those first that most rests on."""
    both = {"softmax": None, "entmax15": "entmax15", "sparsemax": "sparsemax"}
    relu = Sweep(head="alpha_relu")
    made = {name: Sweep(head=choice, attention=choice) for name, choice in both.items()}
    made["output-alpha_relu"] = relu
    for lam in (-1.0, 0.0, 0.5, 0.9):
        made[f"cross-sparsegen_lin-{lam:g}"] = Sweep(attention={"cross": {"name": "sparsegen_lin", "lam": lam}})
    for q in (0.1, 1.0, 10.0):
        made[f"cross-sparsehourglass-{q:g}"] = Sweep(attention={"cross": {"name": "sparsehourglass", "q": q}})
    made["output-entmax15"] = Sweep(head="entmax15")
    made["output-sparsemax"] = Sweep(head="sparsemax")
    made |= {f"en-de-{name}": dataclasses.replace(made[name], reverse=True) for name in [*both, "output-alpha_relu"]}
    made |= {f"output-{alpha:g}": Sweep(head=entmax(alpha), attention="entmax15") for alpha in (1, 1.33, 2)}
    made |= {f"attention-{alpha:g}": Sweep(head="entmax15", attention=entmax(alpha)) for alpha in (1.33, 2)}
    made["en-de-output-1.33"] = dataclasses.replace(made["output-1.33"], reverse=True)
    for name in ("softmax", "entmax15", "output-alpha_relu"):
        made[f"{name}-smoothed"] = dataclasses.replace(made[name], label_smoothing=0.1)
    for tau in (0.0, 1.0, 5.0):
        made[f"output-alpha_relu-tau-{tau:g}"] = Sweep(head={"name": "alpha_relu", "tau": tau})
    made["cross-softmax-temperature"] = Sweep(attention={"cross": {"name": "softmax", "temperature": 0.5}})
    return made


QUICK = {"steps": 4, "batch_size": 8, "train_rows": 200, "test_rows": 6, "vocabulary": 400, "beams": 2}


def head_map(model: PreTrainedModel) -> MapConfig:
    """The map at a model's output."""
    return (hf_sparse.sparse_config(model).head if hf_sparse.is_sparse(model) else None) or MapConfig("softmax")


class Curve(TrainerCallback):
    """Adds to Trainer's log, which checkpoints keep, what logits and thresholds are on some held-out pairs."""

    def __init__(self, batch: Any, every: int) -> None:
        self.batch, self.every = batch, every

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """The untrained model."""
        if state.global_step == 0:
            self.measure(model, state)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Another point, when it is time."""
        if state.global_step % self.every == 0:
            self.measure(model, state)

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, state: Any) -> None:
        """One point: means over the target tokens."""
        model.eval()
        batch = {name: values.to(model.device) for name, values in self.batch.items()}
        counted = batch["labels"] != -100
        z, gold = model(**batch).logits[counted].float(), batch["labels"][counted]
        p = head_map(model)(z)
        model.train()
        state.log_history.append(
            {
                "step": state.global_step,
                "logit_norm": float(logit_norm(z).mean()),
                "threshold": float(entmax_threshold(z, 1.5).mean()),
                "head_support": float((p > 0).sum(-1).float().mean()),
                "head_sum": float(self_normalization_sum(p).mean()),
                "accuracy": float((z.argmax(-1) == gold).float().mean()),
            }
        )


@torch.no_grad()
def decode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sources: Sequence[str], beams: int
) -> tuple[list[str], dict[str, float]]:
    """Translations by beam search for the likeliest string, and how often the empty one is likelier still."""
    model.eval()
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))  # little padding
    texts, preferred, empty = [""] * len(sources), 0, 0
    for start in range(0, len(order), 50):
        batch = order[start : start + 50]
        inputs = tokenizer([sources[index] for index in batch], padding=True, return_tensors="pt").to(model.device)
        longest = min(2 * inputs.input_ids.shape[1] + 10, model.generation_config.max_new_tokens)
        compared = hf_sparse.compare_with_empty(
            model, inputs, beams, max_new_tokens=longest, length_penalty=0.0, early_stopping="never"
        )
        for index, text in zip(batch, tokenizer.batch_decode(compared.hypotheses, skip_special_tokens=True)):
            texts[index] = text
        preferred += int(compared.preferred.sum())
        empty += int(compared.found_empty.sum())
    return texts, {"empty_preferred": preferred / len(sources), "empty_found": empty / len(sources)}


@torch.no_grad()
def forced_figures(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[Pair]
) -> dict[str, Any]:
    """Supports of head and cross-attention, and sums of the head's weights, while the references are written."""
    model.eval()
    choice, supports, sums, keys = head_map(model), [], [], 0
    cross = {site.path for _, site in attention_sites(model) if site.kind == "cross"}
    with observe(model) as counts:
        for pair in pairs:  # one at a time: padding would be counted
            inputs = tokenizer(pair.source, return_tensors="pt").to(model.device)
            labels = tokenizer(pair.target, return_tensors="pt").input_ids.to(model.device)
            weights = choice(model(**inputs, labels=labels).logits[0].float())
            supports += (weights > 0).sum(-1).tolist()
            sums += self_normalization_sum(weights).tolist()
            keys += labels.shape[1] * inputs.input_ids.shape[1]
    seen = [count for path, count in counts.items() if path in cross]
    attended = sum(count.nonzero for count in seen) / sum(count.rows for count in seen) if seen else keys / len(sums)
    share = sum(count.nonzero for count in seen) / sum(count.keys for count in seen) if seen else 1.0
    histogram = Counter(math.ceil(math.log2(max(size, 1))) for size in supports)
    return {
        "head_support": fmean(supports),
        "head_support_histogram": {str(2**power): histogram[power] for power in sorted(histogram)},
        "head_sum": {"mean": fmean(sums), "std": pstdev(sums)},
        "attended": attended,
        "attended_share": share,
    }


def scores(metric: str, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of sacrebleu, or ROUGE F1 in percent.

    Raises:
        ValueError: another metric.
    """
    if metric == "bleu":
        import sacrebleu

        return {
            "bleu": sacrebleu.corpus_bleu(texts, [references]).score,
            "chrf": sacrebleu.corpus_chrf(texts, [references]).score,
        }
    if metric == "rouge":
        from rouge_score.rouge_scorer import RougeScorer

        names = ("rouge1", "rouge2", "rougeL")
        rows = [RougeScorer(names, use_stemmer=True).score(*both) for both in zip(references, texts)]
        return {name: 100 * fmean(row[name].fmeasure for row in rows) for name in names}
    raise ValueError(f"metric must be bleu or rouge, was {metric!r}")


def example(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Cross-attention (mean over heads of the last layer) at the first short pair, for the pictures."""
    if not attention_sites(model):
        model.set_attn_implementation("eager")  # the others do not return their weights
    lengths = [max(len(tokenizer(text).input_ids) for text in pair) for pair in pairs]
    pair = next((pair for pair, length in zip(pairs, lengths) if 8 <= length <= LONGEST_PICTURED), pairs[0])
    weights: Tensor = attention_of(model, tokenizer, [pair])[0]
    keys, queries = (tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in pair)
    return {"keys": keys, "queries": queries, "weights": [[round(w, 4) for w in row] for row in weights.tolist()]}


def perform(settings: Sweep, folder: Path) -> dict[str, Any]:
    """Train one model and measure it; the model stays in ``folder``."""
    names = ("data", "source", "target", "reverse", "train_rows", "vocabulary")
    corpus, tokenizer, rows = prepared(*(getattr(settings, name) for name in names))
    test = corpus.test[: settings.test_rows]
    model = build_model(tokenizer, settings.seed)
    if settings.head or settings.attention:
        model = hf_sparse.sparsify(model, attn=settings.attention, head=settings.head)
    collator, clock = Collator(tokenizer, model), StepSeconds()
    curve = Curve(collator(list(encode(corpus.dev[:CURVE_ROWS], tokenizer))), max(settings.steps // 20, 1))
    log = train(
        model, tokenizer, rows, folder / "checkpoints", collator=collator, steps=settings.steps, lr=settings.lr,
        batch_size=settings.batch_size, seed=settings.seed, label_smoothing=settings.label_smoothing,
        report_to=settings.report_to, callbacks=[clock, curve],
    )  # fmt: skip
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    texts, empty = decode(model, tokenizer, [pair.source for pair in test], settings.beams)
    (folder / "translations.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    target_tokens = fmean(map(len, rows["labels"])) * settings.batch_size
    return {
        **scores(settings.metric, texts, [pair.target for pair in test]),
        **empty,
        **forced_figures(model, tokenizer, test),
        "tokens_per_cpu_second": target_tokens / fmean(clock.seconds),
        "config": hf_sparse.sparse_config(model).to_dict() if hf_sparse.is_sparse(model) else None,
        "parameters": model.num_parameters(),
        "rows": {"train": len(rows), "test": len(test), "vocabulary": len(tokenizer)},
        "curve": [entry for entry in log if "threshold" in entry],
        "loss": [{"step": entry["step"], "loss": entry["loss"]} for entry in log if "loss" in entry],
        "example": example(model, tokenizer, test),
    }


if __name__ == "__main__":
    main("translation_sweep", __doc__, runs(), perform, report, QUICK)
