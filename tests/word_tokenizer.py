"""A tokenizer for the tiny models: token i is the word ``wi``, and words are apart by spaces."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import BOS, EOS, PAD

SPECIAL = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}


def word_tokenizer(vocab_size=23, **special):
    """``special``: further special tokens, as ``mask_token="<mask>"``, in the place of words from ``w3`` on.

    None of them is added to a sentence.
    """
    names = SPECIAL | dict(enumerate(special.values(), start=len(SPECIAL)))
    vocabulary = {names.get(i, f"w{i}"): i for i in range(vocab_size)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[PAD]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=32,
        pad_token=SPECIAL[PAD],
        unk_token=SPECIAL[PAD],
        bos_token=SPECIAL[BOS],
        eos_token=SPECIAL[EOS],
        **special,
    )
