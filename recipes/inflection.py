"""Morphological inflection with sparse heads: from a lemma and tags to the inflected form, character by character.

    fly V;V.PTCP;PST  ->  flown

A small BART-like model is trained from scratch for each head: softmax, and sparse ones with entmax15 attention. The
run then prints how they compare and every form to which the sparse model gives nonzero probability, draws a picture
of its cross-attention, saves it with a model card, loads it back and checks that nothing changed.

The task and its sparse models are those of Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models",
Section 4.1; the data format is that of the SIGMORPHON 2018 shared task.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import evaluate
import torch
import transformers
from datasets import Dataset
from environment import environment
from inflection_report import comparison, data_text, hypotheses_text, write_model_card
from progress import Progress
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ProgressCallback

import hf_sparse
from hf_sparse.functional import MAPS
from hf_sparse.hub import fresh_folder

ENGLISH_VERBS = Path(__file__).resolve().parent / "data" / "english_verbs.tsv"
EXAMPLE = ("draw", "V;V.PTCP;PST")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
HEADS = ("softmax", "entmax15", "alpha_relu")
SPARSE_ATTENTION = "entmax15"

STEPS, QUICK_STEPS = 750, 30
QUICK_TRAIN_ROWS, QUICK_DEV_ROWS = 1000, 60
LONGEST_LINE = 400  # characters
EXTRA_LENGTH = 5  # a form may be this many characters longer than the longest one seen


class Predictions(NamedTuple):
    """What greedy decoding gave for some rows."""

    forms: list[str]
    supports: list[int]  # classes of nonzero probability at every step of every row, the end token's included

    @property
    def support_size(self) -> float:
        """Mean number of classes of nonzero probability, a step."""
        return sum(self.supports) / len(self.supports)

    @property
    def one_candidate_rate(self) -> float:
        """Share of steps at which one class has all the probability."""
        return self.supports.count(1) / len(self.supports)


class ExactMatch(evaluate.Metric):
    """Share of predictions equal to their reference, character by character."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation="",
            inputs_description="",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        equal = [prediction == reference for prediction, reference in zip(predictions, references)]
        return {"exact_match": sum(equal) / len(equal)}


def read_table(path: Path) -> Dataset:
    """Read rows ``lemma TAB form TAB tags`` (UTF-8, tags joined by ``;``, no header).

    Raises:
        ValueError: not such a file; the message names the line.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be UTF-8 text; byte {error.start} is not") from error
    rows = []
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != 3 or not all(fields):
            raise ValueError(
                f"{path}, line {number}: expected three fields, lemma TAB form TAB tags "
                f"(as in 'draw\\tdrawn\\tV;V.PTCP;PST'), was {line!r}"
            )
        if "<" in line or ">" in line:
            raise ValueError(f"{path}, line {number}: the characters < and > mark tags and must not occur: {line!r}")
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{path}, line {number}: more than {LONGEST_LINE} characters, was {len(line)}")
        tags = fields[2].split(";")
        if "" in tags or any(f"<{tag}>" in SPECIAL for tag in tags):
            reserved = ", ".join(special.strip("<>") for special in SPECIAL)
            raise ValueError(f"{path}, line {number}: a tag is empty or one of {reserved}: {fields[2]!r}")
        rows.append(dict(zip(("lemma", "form", "tags"), fields)))
    if not rows:
        raise ValueError(f"{path}: no rows; expected lines of lemma TAB form TAB tags")
    return Dataset.from_list(rows)


def held_out(lemma: str) -> bool:
    """Whether all forms of a lemma are held out: where CRC-32 of its UTF-8 bytes ends in 3, about one in ten."""
    return zlib.crc32(lemma.encode()) % 10 == 3


def source_text(lemma: str, tags: str) -> str:
    """What the encoder reads: ``draw<V><V.PTCP><PST>``."""
    return lemma + "".join(f"<{tag}>" for tag in tags.split(";"))


def build_tokenizer(rows: Dataset) -> PreTrainedTokenizerFast:
    """One token a character or tag, with those that occur in ``rows``; ``</s>`` ends every text."""
    characters = {character for row in rows for character in row["lemma"] + row["form"]}
    tags = {f"<{tag}>" for row in rows for tag in row["tags"].split(";")}
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *sorted(characters), *sorted(tags)])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("<[^>]*>|."), "isolated")
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", vocabulary["</s>"])])
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def tokenize(rows: Dataset, tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Add the columns the model and the length-grouping sampler read."""

    def columns(batch: dict[str, list[str]]) -> dict[str, list]:
        inputs = tokenizer([source_text(*pair) for pair in zip(batch["lemma"], batch["tags"])])
        return {**inputs, "labels": tokenizer(batch["form"]).input_ids, "length": list(map(len, inputs.input_ids))}

    return rows.map(columns, batched=True, remove_columns=rows.column_names)


def build_model(head: str, tokenizer: PreTrainedTokenizerFast, longest_form: int, seed: int) -> PreTrainedModel:
    """A fresh model; the same seed gives every head the same weights."""
    set_seed(seed)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_position_embeddings=LONGEST_LINE + EXTRA_LENGTH + 1,
        dropout=0.3,  # with 0.1 a third of the words have too many possible forms to list; with 0.3 one in forty
        init_std=0.06,  # with BART's own 0.02 sparse heads stall at this learning rate: see README.md
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        forced_eos_token_id=None,
    )
    model = BartForConditionalGeneration(config)
    model.generation_config.max_new_tokens = longest_form + EXTRA_LENGTH
    if head == "softmax":
        return model
    return hf_sparse.sparsify(model, attn=SPARSE_ATTENTION, head=head)


def train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Dataset, options: Any) -> list[dict]:
    """Train ``model`` in place with the Trainer that fits it; returns what Trainer logged."""
    sparse = hf_sparse.is_sparse(model)
    trainer_class = hf_sparse.SparseSeq2SeqTrainer if sparse else Seq2SeqTrainer
    arguments_class = hf_sparse.SparseTrainingArguments if sparse else Seq2SeqTrainingArguments
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_class(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.lr,
            warmup_steps=options.warmup,
            lr_scheduler_type="cosine",
            train_sampling_strategy="group_by_length",
            seed=options.seed,
            logging_steps=max(options.steps // 5, 1),
            save_strategy="no",
            report_to="none",
            disable_tqdm=False,
            dataloader_pin_memory=False,
        )
        collator = DataCollatorForSeq2Seq(tokenizer, model)
        trainer = trainer_class(model, arguments, collator, train_dataset=rows, processing_class=tokenizer)
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(Progress)
        trainer.train()
    return trainer.state.log_history


@torch.no_grad()
def predict(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Dataset, batch_size: int = 256
) -> Predictions:
    """Decode ``rows`` greedily and count the candidates at every step."""
    model.eval()
    texts = [source_text(row["lemma"], row["tags"]) for row in rows]
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # little padding
    forms, supports = [""] * len(texts), []
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        inputs = tokenizer([texts[index] for index in batch], padding=True, return_tensors="pt").to(model.device)
        output = model.generate(**inputs, do_sample=False, return_dict_in_generate=True, output_logits=True)
        generated = output.sequences[:, 1:]
        for index, form in zip(batch, tokenizer.batch_decode(generated, skip_special_tokens=True)):
            forms[index] = form
        supports += count_candidates(torch.stack(output.logits, dim=1), generated, tokenizer.eos_token_id)
    return Predictions(forms, supports)


def count_candidates(logits: torch.Tensor, generated: torch.Tensor, end: int) -> list[int]:
    """The number of classes of nonzero probability at each step, up to and including each row's end token.

    Args:
        logits: (rows, steps, classes) as ``generate`` returns them. A sparse model gives log-probabilities there, so
            that softmax yields its own distribution, zeros included.
        generated: token ids (rows, steps).
        end: the end token.
    """
    ended_before = (generated == end).cumsum(-1) - (generated == end).long() > 0
    support = (logits.float().softmax(-1) > 0).sum(-1)
    return support[~ended_before].tolist()


def run_head(
    head: str, tokenizer: PreTrainedTokenizerFast, train_rows: Dataset, dev_rows: Dataset, options: Any
) -> tuple[PreTrainedModel, Predictions, dict[str, Any]]:
    """Train and score one head."""
    started = time.perf_counter()
    model = build_model(head, tokenizer, max(map(len, train_rows["form"])), options.seed)
    history = train(model, tokenizer, tokenize(train_rows, tokenizer), options)
    trained = time.perf_counter()
    predictions = predict(model, tokenizer, dev_rows)
    exact_match = ExactMatch().compute(predictions=predictions.forms, references=dev_rows["form"])["exact_match"]
    figures = {
        "head": head,
        "attention": SPARSE_ATTENTION if hf_sparse.is_sparse(model) else "softmax",
        "settings": hf_sparse.sparse_config(model).to_dict() if hf_sparse.is_sparse(model) else None,
        "exact_match": exact_match,
        "support_size": predictions.support_size,
        "one_candidate_rate": predictions.one_candidate_rate,
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "training_seconds": round(trained - started, 1),
        "seconds": round(time.perf_counter() - started, 1),
        "training_log": history,
    }
    return model, predictions, figures


def hypotheses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, row: dict[str, str], limit: int
) -> dict[str, Any]:
    """Every form to which a sparse model gives nonzero probability, likeliest first."""
    source = source_text(row["lemma"], row["tags"])
    inputs = tokenizer(source, return_tensors="pt").to(model.device)
    found = hf_sparse.enumerate_support(model, inputs, limit, model.generation_config.max_new_tokens)
    forms = tokenizer.batch_decode([ids[:-1] for ids in found.sequences])  # without the end token
    return {
        **row,
        "source": source,
        "greedy": tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True),
        "complete": found.complete,
        "mass": found.mass,
        "forms": [{"form": form, "probability": p} for form, p in zip(forms, found.probabilities)],
    }


@torch.no_grad()
def draw_cross_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, row: dict[str, str], form: str, path: Path
) -> None:
    """Save a picture of the last layer's cross-attention, averaged over heads, while ``form`` is written."""
    inputs = tokenizer(source_text(row["lemma"], row["tags"]), return_tensors="pt").to(model.device)
    labels = tokenizer(form, return_tensors="pt").input_ids.to(model.device)
    weights = model(**inputs, labels=labels, output_attentions=True).cross_attentions[-1][0].mean(0)
    keys, queries = (tokenizer.convert_ids_to_tokens(ids[0]) for ids in (inputs.input_ids, labels))
    hf_sparse.plot_attention(weights, keys, queries, title=f"{row['lemma']} {row['tags']} → {form}", path=path)


def check_reload(folder: Path, rows: Dataset, expected: Predictions, device: torch.device) -> None:
    """Load a saved model in both ways and predict again.

    Greedy decoding alone would not notice a head that came back dense: the candidates at every step would.

    Raises:
        RuntimeError: a prediction or a number of candidates differs.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for load in (hf_sparse.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained):
        if predict(load(folder).to(device), tokenizer, rows) != expected:
            raise RuntimeError(f"{folder} predicts otherwise than the model saved there, loaded by {load}")


def parse_arguments(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Dataset, Dataset]:
    """Read the command line and the data it names; leaves the program with a message where either is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    heads = ", ".join(sorted(MAPS))
    add("--train", type=Path, metavar="FILE", help="train on this file: lines of lemma TAB form TAB tags, UTF-8")
    add("--dev", type=Path, metavar="FILE", help="evaluate on this file (default: one in ten English verbs, unseen)")
    add("--out", type=Path, default=Path("out/inflection"), metavar="DIR", help="folder for results (%(default)s)")
    add("--heads", nargs="+", default=HEADS, choices=sorted(MAPS), metavar="HEAD",
        help=f"heads to train, of: {heads} (default: {' '.join(HEADS)})")  # fmt: skip
    add("--steps", type=int, help=f"training steps for each head ({STEPS}; {QUICK_STEPS} with --quick)")
    add("--batch-size", type=int, default=128, help="rows in a step (%(default)s)")
    add("--lr", type=float, default=2e-3, help="peak learning rate; README.md says how far it can go (%(default)s)")
    add("--warmup", type=int, help="steps over which the learning rate rises to its peak (a tenth of --steps)")
    add("--seed", type=int, default=0, help="for weights, dropout and the order of the rows (%(default)s)")
    add("--max-hypotheses", type=int, default=1000, help="list at most this many forms of one word (%(default)s)")
    add("--quick", action="store_true", help="a few steps on a few rows: shows that all works, learns nothing")
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.dev is None):
        parser.error("--train and --dev go together: give both or neither")
    for name in ("steps", "batch_size", "max_hypotheses", "lr"):
        if getattr(options, name) is not None and not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, was {getattr(options, name)}")
    if options.warmup is not None and options.warmup < 0:
        parser.error(f"--warmup must not be below 0, was {options.warmup}")
    if options.out.is_file():
        parser.error(f"--out {options.out} is a file; choose a folder")
    if options.out.is_dir() and not (options.out / "results.json").is_file() and any(options.out.iterdir()):
        parser.error(f"--out {options.out} exists and holds something else than an earlier run; choose another folder")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the picture needs matplotlib: pip install 'hf_sparse[plots]'")
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    options.heads = list(dict.fromkeys(options.heads))
    options.warmup = max(options.steps // 10, 1) if options.warmup is None else options.warmup
    try:
        if options.train is not None:
            return options, read_table(options.train), read_table(options.dev)
        verbs = read_table(ENGLISH_VERBS)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    train, dev = [], []
    for index, lemma in enumerate(verbs["lemma"]):
        (dev if held_out(lemma) else train).append(index)
    return options, verbs.select(train), verbs.select(dev)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe."""
    options, train_rows, dev_rows = parse_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()

    example = next((row for row in dev_rows if (row["lemma"], row["tags"]) == EXAMPLE), dev_rows[0])
    if options.quick:
        train_rows = train_rows.shuffle(seed=0).select(range(min(QUICK_TRAIN_ROWS, len(train_rows))))
        dev_rows = dev_rows.shuffle(seed=0).select(range(min(QUICK_DEV_ROWS, len(dev_rows))))
    tokenizer = build_tokenizer(train_rows)
    result: dict[str, Any] = {
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "data": {
            "train_rows": len(train_rows),
            "dev_rows": len(dev_rows),
            "dev_lemmas": len(set(dev_rows["lemma"])),
            "unseen_dev_lemmas": len(set(dev_rows["lemma"]) - set(train_rows["lemma"])),
            "vocabulary": len(tokenizer),
        },
        "heads": [],
        **environment(),
    }
    print(data_text(result["data"]))

    kept = None
    for number, head in enumerate(options.heads, 1):
        print(f"\n[{number}/{len(options.heads)}] {head} head, {options.steps} steps", flush=True)
        model, predictions, figures = run_head(head, tokenizer, train_rows, dev_rows, options)
        result["heads"].append(figures)
        if head == "entmax15" or (kept is None and hf_sparse.is_sparse(model)):
            kept, result["saved_head"] = (model, predictions), head

    print(f"\n{comparison(result['heads'])}\n")
    with fresh_folder(options.out) as folder:
        if kept is None:
            print("A softmax head gives every string nonzero probability: no forms to list, no sparse model to save.")
        else:
            model, predictions = kept
            found = hypotheses(model, tokenizer, example, options.max_hypotheses)
            result["hypotheses"] = found
            print(hypotheses_text(found, result["saved_head"]))
            draw_cross_attention(model, tokenizer, example, found["greedy"], folder / "cross_attention.png")
            model.save_pretrained(folder / "model")
            tokenizer.save_pretrained(folder / "model")
            write_model_card(folder / "model", options.out / "model", result)
            check_reload(folder / "model", dev_rows, predictions, model.device)
            print("\nSaved, loaded by hf_sparse.from_pretrained and by AutoModelForSeq2SeqLM: equal predictions.")
        (folder / "results.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"Results in {options.out}: results.json{'' if kept is None else ', cross_attention.png, model/'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
