"""Tiny tokenizers whose tokens overlap, so that a text has several tokenizations."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import BOS, EOS, PAD

SPECIAL = ["<pad>", "<s>", "</s>"]


def _fast(backend):
    assert [backend.token_to_id(token) for token in SPECIAL] == [PAD, BOS, EOS]
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def joined(*words):
    """Tokens that write ``words``, one after the other."""
    backend = Tokenizer(models.BPE({w: i for i, w in enumerate([*SPECIAL, *words])}, merges=[]))
    backend.decoder = decoders.Fuse()
    return _fast(backend)


def byte_level(*words):
    """Byte-level BPE: ``words`` in the alphabet of GPT-2, ``Ġ`` for a space."""
    backend = Tokenizer(models.BPE({w: i for i, w in enumerate([*SPECIAL, *words])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _fast(backend)


def sentence_piece(*words):
    """As SentencePiece: ``▁`` for a space, of which a decoded text leaves out the first; bytes as ``<0x0A>``."""
    backend = Tokenizer(models.BPE({w: i for i, w in enumerate([*SPECIAL, *words])}, merges=[], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    return _fast(backend)


def metaspace(prepend_scheme, *words):
    """As T5's: ``▁`` for a space, all of which the decoder leaves out of the first token of a text unless "never"."""
    return decoding(decoders.Metaspace(prepend_scheme=prepend_scheme), *words)


def decoding(decoder, *words):
    """Tokens that write ``words`` with a decoder of one's own."""
    backend = Tokenizer(models.BPE({w: i for i, w in enumerate([*SPECIAL, *words])}, merges=[]))
    backend.decoder = decoder
    return _fast(backend)
