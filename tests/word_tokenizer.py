"""A tokenizer for the tiny models: token i is the word ``wi``, and words are apart by spaces."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import BOS, EOS, PAD


def word_tokenizer(vocab_size=23, **special):
    """``special``: further special tokens, as ``mask_token="w3"``. None of them is added to a sentence."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token=f"w{PAD}"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": f"w{PAD}", "unk_token": f"w{PAD}", "bos_token": f"w{BOS}", "eos_token": f"w{EOS}", **special}
    return PreTrainedTokenizerFast(
        tokenizer_object=words, model_input_names=["input_ids", "attention_mask"], model_max_length=32, **named
    )
