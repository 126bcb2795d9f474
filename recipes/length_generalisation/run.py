"""Length generalisation: attention trained on short sequences, tested on sequences several times as long.

A decoder-only model of two layers learns to copy, to reverse, or to recall values by their keys, and is tested at up
to 64 times the longest training length. Only the map of its attention differs between runs: softmax, scalable
softmax, entmax15, adaptive-scalable entmax.

The first layer sees the previous token, the second sees everything, without positions. All three tasks can be solved
by reading the neighbour in the first layer and looking for the same symbol in the second. That works at every length,
as long as attention stays on the one key that it looks for.

The maps are those of Vasylenko et al. 2025, "Long-Context Generalization with Sparse Attention", and the factor of
scalable softmax that of Nakanishi 2025. In the paper beta and gamma depend on the query; here each head learns its
own.

    python -m recipes.length_generalisation.run
    python -m recipes.length_generalisation.run --only 'copy-*' --seeds 3 --out out/copy
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, SmolLM3Config, SmolLM3ForCausalLM, set_seed

import hf_sparse
from hf_sparse.attention import observe

from ..lib.models import config_of, learned_by_layer
from ..lib.records import Figures
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import train
from .data import MARK, PAD, TASKS, check_symbols, collate, rows
from .report import card, report

# The temperature of docs/training.md. At 1, scores of fresh weights leave out most keys, and these get no gradient.
WARM = {"temperature": 3.0}
ENTMAX: dict[str, Any] = {"name": "entmax15"}
ADAPTIVE: dict[str, Any] = {**ENTMAX, "beta": {"learned": 0.1}, "gamma": {"learned": 1.0}}
ATTENTION: dict[str, Any] = {
    "softmax": None,
    "scalable softmax": {"name": "softmax", "delta": 0.0, "beta": {"learned": 0.43}},
    "entmax15": ENTMAX | WARM,
    "adaptive-scalable entmax15": ADAPTIVE | WARM,
    "entmax15 at temperature 1": ENTMAX,
    "adaptive-scalable entmax15 at temperature 1": ADAPTIVE,
}
# Maps whose weights need not sum to one.
ATTENTION |= {name: name for name in ("sigmoid", "relu_over_n", "squared_relu_over_n", "softpick", "softmax1")}
ATTENTION["alpha_relu"] = {"name": "alpha_relu", "tau": 0.0}


@dataclasses.dataclass(frozen=True)
class LengthSettings(Settings):
    """A task, a map of attention, and training."""

    task: str = setting("copy")
    attention: str = setting("softmax")
    longest: int = setting(8)
    shortest: int = setting(2)
    multiples: tuple[int, ...] = setting((1, 2, 4, 8, 16, 32, 64), paper="up to 1000", where="abstract")
    symbols: int = setting(512)
    width: int = setting(64)
    heads: int = setting(2)
    window: int = setting(2)
    steps: int = setting(400)
    batch_size: int = setting(128)
    lr: float = setting(5e-3)
    test_rows: int = setting(40)
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, task=TASKS, attention=ATTENTION)
        check_positive(self, "shortest", "symbols", "width", "heads", "window", "steps", "batch_size", "test_rows")
        if self.longest < self.shortest:
            raise ValueError(f"longest must be at least shortest, {self.shortest}, was {self.longest}")
        if not self.multiples or min(self.multiples) < 1:
            raise ValueError(f"multiples must be some numbers from 1 on, was {self.multiples}")


def build(settings: LengthSettings) -> PreTrainedModel:
    """A fresh model with the attention of a run; the same seed gives the same weights."""
    set_seed(settings.seed)
    longest = settings.longest * max(settings.multiples)
    config = SmolLM3Config(
        vocab_size=settings.symbols + 2,
        hidden_size=settings.width,
        intermediate_size=2 * settings.width,
        num_hidden_layers=2,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        no_rope_layers=[1, 0],  # 1 is a layer with rotary positions
        layer_types=["sliding_attention", "full_attention"],
        use_sliding_window=True,
        sliding_window=settings.window,
        max_position_embeddings=4 * longest,
        pad_token_id=PAD,
        bos_token_id=MARK,
        eos_token_id=None,
        initializer_range=0.06,
    )
    model = SmolLM3ForCausalLM(config)
    attention = ATTENTION[settings.attention]
    return model if attention is None else hf_sparse.sparsify(model, attn=attention)


@torch.no_grad()
def test(model: PreTrainedModel, settings: LengthSettings, length: int) -> dict[str, Any]:
    """Figures of ``model`` at one length.

    Returns:
        ``exact``, the share of rows without a mistake (those that greedy decoding gets right); ``tokens``, the share
        of right answer tokens with the answer forced; ``loss``, their mean negative log-likelihood in nats; ``keys``,
        the mean number of keys of nonzero weight per layer, None for softmax attention.
    """
    model.eval()
    lengths, seed = range(length, length + 1), f"test {length}"
    data = list(rows(settings.task, lengths, settings.test_rows, settings.symbols, seed))
    exact, right, asked, loss = 0, 0, 0, 0.0
    with observe(model) as counts:
        for batch in DataLoader(data, batch_size=max(1, 2560 // length), collate_fn=collate):
            labels = batch.pop("labels")[:, 1:]
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            logits = model(**batch).logits[:, :-1].cpu()
            counted = labels != -100
            wrong = counted & (logits.argmax(-1) != labels)
            loss += float(cross_entropy(logits[counted], labels[counted], reduction="sum"))
            exact += int((~wrong.any(-1)).sum())
            right += int((counted & ~wrong).sum())
            asked += int(counted.sum())
    keys = [round(count.support_size, 2) for count in counts.values()]
    means = {"exact": exact / len(data), "tokens": right / asked, "loss": loss / asked}
    return {"length": length, **means, "keys": keys or None}


def perform(settings: LengthSettings, folder: Path) -> Figures:
    """Train one model and test it at every length."""
    model = build(settings)
    trained = range(settings.shortest, settings.longest + 1)
    count = settings.steps * settings.batch_size
    train(
        model,
        None,
        Dataset.from_list(list(rows(settings.task, trained, count, settings.symbols, f"train {settings.seed}"))),
        folder / "training",
        collator=collate,
        steps=settings.steps,
        lr=settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        report_to=settings.report_to,
    )
    model.save_pretrained(folder / "model")  # it has no tokenizer
    lengths = [settings.longest * multiple for multiple in settings.multiples]
    return {
        "parameters": model.num_parameters(),
        "maps": config_of(model),
        "learned": learned_by_layer(model),
        "lengths": [test(model, settings, length) for length in lengths],
    }


# Recall from lists of at most 8 pairs is learned too late; and a list of n pairs needs 2 n symbols.
OWN: dict[str, dict[str, Any]] = {
    "recall": {"longest": 16, "multiples": (1, 2, 4, 8, 16), "steps": 1000, "batch_size": 64}
}
RUNS = {
    f"{task}-{attention.replace(' ', '-')}": LengthSettings(task=task, attention=attention, **OWN.get(task, {}))
    for task in TASKS
    for attention in ATTENTION
}
QUICK = {"steps": 4, "longest": 4, "shortest": 2, "multiples": (1, 2), "symbols": 32, "width": 16, "test_rows": 4}

STUDY = Study(
    name="length_generalisation",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    check=lambda settings: check_symbols(settings.task, settings.longest * max(settings.multiples), settings.symbols),
)

if __name__ == "__main__":
    main(STUDY)
