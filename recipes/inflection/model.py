"""The model of the inflection recipes: a tokenizer of characters and tags, and a small BART that reads them."""

from __future__ import annotations

from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedModel, PreTrainedTokenizerFast, set_seed

from .data import LONGEST_ROW, SPECIAL

EXTRA_LENGTH = 5  # a form may be this many characters longer than the longest one seen
WIDTH, LAYERS, NUM_HEADS = 128, 2, 4
INIT_STD = 0.06  # with BART's own 0.02 heads stall at this learning rate: see README.md
DROPOUT = 0.3  # with 0.1 a third of the words have too many possible forms to list; with 0.3 one in forty


def source_text(lemma: str, tags: str) -> str:
    """Input of the encoder: ``draw<V><V.PTCP><PST>``."""
    return lemma + "".join(f"<{tag}>" for tag in tags.split(";"))


def build_tokenizer(rows: Dataset) -> PreTrainedTokenizerFast:
    """Tokenizer with one token per character and per tag that occurs in ``rows``; ``</s>`` ends every text."""
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


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Token ids of both sides, and the length by which rows are batched."""

    def columns(batch: dict[str, list[str]]) -> dict[str, list]:
        inputs = tokenizer([source_text(*pair) for pair in zip(batch["lemma"], batch["tags"])]).input_ids
        return {"input_ids": inputs, "labels": tokenizer(batch["form"]).input_ids, "length": list(map(len, inputs))}

    return rows.map(columns, batched=True, remove_columns=rows.column_names)


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    longest_form: int,
    seed: int,
    *,
    width: int = WIDTH,
    layers: int = LAYERS,
    dropout: float = DROPOUT,
    init_std: float = INIT_STD,
) -> PreTrainedModel:
    """A fresh dense model; the same seed gives the same weights.

    Args:
        tokenizer: of the model.
        longest_form: number of characters of the longest training form.
        seed: of the weights.
        width: of embeddings and hidden states; the feed-forward layers are four times as wide; a multiple of
            ``NUM_HEADS``.
        layers: of the encoder, and of the decoder.
        dropout: probability in [0, 1).
        init_std: standard deviation of the weights.
    """
    set_seed(seed)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=NUM_HEADS,
        decoder_attention_heads=NUM_HEADS,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_position_embeddings=LONGEST_ROW + EXTRA_LENGTH + 1,
        dropout=dropout,
        init_std=init_std,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        forced_eos_token_id=None,
    )
    model = BartForConditionalGeneration(config)
    model.generation_config.max_new_tokens = longest_form + EXTRA_LENGTH
    return model
