"""Tokenizer of chemical reactions in SMILES: an atom, a bond, a bracket or a ring number is a token."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

# Atoms in brackets, elements of two letters, arrows and two-digit rings before single characters.
TOKEN = r"\[[^\]]*\]|Br|Cl|>>|%\d\d|."


def reaction_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder with ``vocab.txt``, a token a line, as BERT's are; unknown tokens become [UNK].

    Args:
        folder: of the model's files.
    """
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {token: number for number, token in enumerate(lines)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
    )
