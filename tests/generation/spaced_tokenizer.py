"""A tiny tokenizer some of whose tokens begin with a space."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ["<pad>", "<s>", "</s>", " the", " cat", "s", "c"]


def spaced_tokenizer(words=WORDS):
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(" ?[a-z]{3}| ?."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<pad>",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
