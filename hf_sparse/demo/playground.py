"""What the page shows, computed: a model with softmax and one with the maps that are set share their weights."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..attention import attention_sites
from ..attention.observer import AttentionObserver
from ..attention.site import KIND_OF_OUTPUT, hidden_far_below, observing
from ..functional.arguments import check_count, check_number, check_type
from ..generation import Branch, SearchResult, exact_search, hypothesis_tree
from ..generation.forced import beginning, forced_output
from ..generation.inputs import encode
from ..generation.labels import token_labels
from ..model import is_sparse, probabilities, sparsify, unsparsify


@dataclass(frozen=True)
class Maps:
    """The settings of the page: entmax in attention and at the head.

    Attributes:
        attention_alpha: 1 is softmax, 1.5 entmax15, 2 sparsemax.
        head_alpha: the same for the next token.
        attention_temperature: that attention's scores are divided by.
        head_temperature: that the logits are divided by.

    >>> Maps(attention_alpha=1.5).rules()
    ({'name': 'entmax', 'alpha': 1.5, 'temperature': 1.0}, {'name': 'entmax', 'alpha': 1.0, 'temperature': 1.0})
    """

    attention_alpha: float = 1.0
    head_alpha: float = 1.0
    attention_temperature: float = 1.0
    head_temperature: float = 1.0

    def rules(self) -> tuple[dict[str, str | float], dict[str, str | float]]:
        """The arguments ``attn`` and ``head`` of ``sparsify``."""
        return (
            {"name": "entmax", "alpha": self.attention_alpha, "temperature": self.attention_temperature},
            {"name": "entmax", "alpha": self.head_alpha, "temperature": self.head_temperature},
        )


SOFTMAX_MAPS = Maps()


@dataclass(frozen=True)
class NextTokens:
    """The distribution of the next token.

    Attributes:
        labels: the likeliest tokens of nonzero probability, as text.
        probabilities: of ``labels``, in the same order.
        support: number of tokens of nonzero probability.
        vocabulary: number of tokens that there are.
    """

    labels: list[str]
    probabilities: list[float]
    support: int
    vocabulary: int


@dataclass(frozen=True)
class TokenAttention:
    """The weights of one kind of attention in one layer and head.

    Attributes:
        weights: (queries, keys), float32.
        queries: labels of the rows.
        keys: labels of the columns.
        possible: number of weights that the mask leaves; the others are zero in a dense model too.
    """

    weights: Tensor
    queries: list[str]
    keys: list[str]
    possible: int

    @property
    def zeros(self) -> float:
        """Share of exact zeros among the weights that the mask leaves."""
        return 1 - int((self.weights > 0).sum()) / self.possible


@dataclass(frozen=True)
class HypothesesView:
    """Complete outputs, and what is proved about them.

    Attributes:
        result: of ``exact_search``.
        tree: the hypotheses as a tree; None where no output ended.
        texts: the hypotheses as text, likeliest first.
    """

    result: SearchResult
    tree: Branch | None
    texts: list[str]


class _Mask(AttentionObserver):
    """What the mask left in the last call that was seen: (batch, heads, queries, keys) booleans."""

    left: Tensor = torch.empty(0, dtype=torch.bool, device="cpu")

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        """See a call."""
        self.left = hidden_far_below(scores) > -torch.inf


class Playground:
    """A model to ask questions, each under maps of its own.

    Args:
        model: a dense model with ``generate``. It stays as it is; what is asked are two copies that share its weights,
            one with softmax and one with the maps asked for last.
        tokenizer: the model's.

    Raises:
        TypeError: not a Transformers model, or no tokenizer.
        ValueError: a sparse model, or one without a language-model head.

    Attributes:
        kinds: the kinds of attention that can be shown, by the names that Transformers has for them.
        chat: whether the tokenizer has a chat template.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        check_type("model", model, PreTrainedModel, "AutoModelForCausalLM")
        check_type("tokenizer", tokenizer, PreTrainedTokenizerBase, "AutoTokenizer")
        if not model.can_generate():
            raise ValueError(f"{type(model).__name__} cannot generate; the page needs a language model")
        if is_sparse(model):
            raise ValueError("the page puts its own maps into a dense model; call unsparsify(model) first")
        self.model = model
        self.tokenizer = tokenizer
        reads = bool(model.config.is_encoder_decoder)
        self.kinds = ["cross_attentions", "decoder_attentions", "encoder_attentions"] if reads else ["attentions"]
        self.chat = not reads and bool(getattr(tokenizer, "chat_template", None))
        self._one_at_a_time = threading.Lock()  # visitors of a page share the models
        self._softmax, self._mapped = (_with_the_same_weights(model).eval() for _ in range(2))
        self._maps: Maps | None = None

    @torch.no_grad()
    def next_tokens(self, text: str, maps: Maps, *, chat: bool = False, most: int = 12) -> NextTokens:
        """The likeliest next tokens, or first tokens of an encoder-decoder's output.

        Args:
            text: the prompt, or what an encoder-decoder reads.
            maps: of attention and head.
            chat: whether the text is a question to a chat model; see ``chat`` of the class.
            most: tokens listed.

        Raises:
            ValueError: an empty text, a map's setting out of range, or ``most`` below 1.
        """
        check_count("most", most)
        inputs = self._inputs(text, chat)
        with self._sparse(maps, inputs) as model:
            start = {"decoder_input_ids": beginning(model, inputs, 1)} if model.config.is_encoder_decoder else {}
            p = probabilities(model, model(**inputs, **start).logits[0, -1])
        order = p.argsort(descending=True, stable=True)[: min(most, int((p > 0).sum()))]
        labels = token_labels(order.tolist(), self.tokenizer)
        return NextTokens(labels, p[order].tolist(), int((p > 0).sum()), len(p))

    @torch.no_grad()
    def attention(
        self,
        text: str,
        maps: Maps,
        layer: int,
        head: int,
        *,
        kind: str | None = None,
        chat: bool = False,
        max_new_tokens: int = 12,
    ) -> TokenAttention:
        """The attention weights of one layer and head: within the text, or along what an encoder-decoder writes.

        Args:
            text: the prompt, or what an encoder-decoder reads.
            maps: of attention and head.
            layer: from 0.
            head: from 0.
            kind: one of ``kinds``; None takes the first.
            chat: whether the text is a question to a chat model.
            max_new_tokens: most tokens that an encoder-decoder writes, greedily.

        Raises:
            ValueError: an empty text, an unknown kind, or a layer or head that the model does not have.
        """
        kind = self.kinds[0] if kind is None else kind
        if kind not in self.kinds:
            raise ValueError(f"kind must be one of {', '.join(self.kinds)}, was {kind!r}")
        inputs = self._inputs(text, chat)
        with self._sparse(maps, inputs) as model:
            written = inputs["input_ids"]
            if model.config.is_encoder_decoder:
                written = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=max_new_tokens)
            sites = [site for _, site in attention_sites(model) if site.kind == KIND_OF_OUTPUT[kind]]
            masks = [_Mask() for _ in sites]
            with observing(zip(sites, masks)):
                if model.config.is_encoder_decoder:
                    output, _, _ = forced_output(model, inputs, written, output_attentions=True)
                else:
                    output = model(**inputs, output_attentions=True)
        weights = _of_layer_and_head(output[kind], layer, head)
        queries, keys = self._labels(kind, inputs["input_ids"][0].tolist(), written[0].tolist())
        weights = weights[: len(queries), : len(keys)]
        left = torch.ones_like(weights, dtype=torch.bool)
        if len(masks) == len(output[kind]) and masks[layer].left.shape == output[kind][layer].shape:
            left = masks[layer].left[0, head, : len(queries), : len(keys)]
        elif kind in ("attentions", "decoder_attentions"):
            left = left.tril()
        return TokenAttention(weights.float(), queries, keys, int(left.sum()))

    def hypotheses(
        self,
        text: str,
        maps: Maps,
        *,
        chat: bool = False,
        num_hypotheses: int = 10,
        max_new_tokens: int = 16,
        max_seconds: float = 20.0,
    ) -> HypothesesView:
        """The likeliest complete outputs, with the proof that they are.

        Args:
            text: the prompt, or what an encoder-decoder reads.
            maps: of attention and head.
            chat: whether the text is a question to a chat model.
            num_hypotheses: outputs to find.
            max_new_tokens: longest output, in tokens.
            max_seconds: time for the search.

        Raises:
            ValueError: an empty text, a budget out of range, or a model without an end token.

        Cost: that of ``exact_search``.
        """
        check_count("num_hypotheses", num_hypotheses)
        check_count("max_new_tokens", max_new_tokens)
        check_number("max_seconds", max_seconds, "above 0", lambda seconds: seconds > 0)
        inputs = self._inputs(text, chat)
        with self._sparse(maps, inputs) as model:
            (result,) = exact_search(
                model, inputs, num_hypotheses, max_new_tokens=max_new_tokens, max_seconds=max_seconds
            )
        strings = [hypothesis.tokens for hypothesis in result.hypotheses]
        chances = [hypothesis.probability for hypothesis in result.hypotheses]
        tree = hypothesis_tree(strings, chances) if strings else None
        texts = [self.tokenizer.decode(string, skip_special_tokens=True) for string in strings]
        return HypothesesView(result, tree, texts)

    def _labels(self, kind: str, read: list[int], written: list[int]) -> tuple[list[str], list[str]]:
        """Labels of queries and keys: in the decoder of an encoder-decoder a query is the token that it writes."""
        source, target = token_labels(read, self.tokenizer), token_labels(written, self.tokenizer)
        return {
            "attentions": (source, source),
            "encoder_attentions": (source, source),
            "decoder_attentions": (target[1:], target[:-1]),
            "cross_attentions": (target[1:], source),
        }[kind]

    def _inputs(self, text: str, chat: bool) -> dict[str, Tensor]:
        if chat and not self.chat:
            raise ValueError("chat=True needs a decoder whose tokenizer has a chat template")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"the text is empty: give at least one word, was {text!r}")
        if chat:
            turns = [{"role": "user", "content": text}]
            text = str(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
            return dict(self.tokenizer(text, add_special_tokens=False, return_tensors="pt").to(self.model.device))
        reads = self.model.config.is_encoder_decoder
        inputs, _ = encode(self.model, self.tokenizer, "" if reads else text, text if reads else None)
        if not inputs["input_ids"].numel():
            raise ValueError(f"the text has no token to go on from: give at least one word, was {text!r}")
        return {"attention_mask": torch.ones_like(inputs["input_ids"]), **inputs}

    def _example(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A few tokens to try the maps on: more than one, for attention to choose among."""
        ids = inputs["input_ids"].repeat(1, 2)[:, :8]
        example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.model.config.is_encoder_decoder:
            example["decoder_input_ids"] = beginning(self.model, inputs, 1).repeat(1, 2)
        return example

    @contextmanager
    def _sparse(self, maps: Maps, inputs: Mapping[str, Tensor]) -> Iterator[PreTrainedModel]:
        """The model with these maps, for one question at a time."""
        with self._one_at_a_time:
            if maps == SOFTMAX_MAPS:
                if not is_sparse(self._softmax):
                    sparsify(self._softmax, *maps.rules(), example=self._example(inputs))
                yield self._softmax
                return
            if maps != self._maps:
                self._maps = None
                if is_sparse(self._mapped):
                    unsparsify(self._mapped)
                sparsify(self._mapped, *maps.rules(), example=self._example(inputs))
                self._maps = maps
            yield self._mapped


def _with_the_same_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model's modules around the same parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def _of_layer_and_head(layers: tuple[Tensor, ...], layer: int, head: int) -> Tensor:
    """The weights (queries, keys) of one layer and head of the only sentence."""
    for name, number, count in (("layer", layer, len(layers)), ("head", head, layers[0].shape[1])):
        check_number(name, number, f"from 0 to {count - 1}", range(count).__contains__)
    return layers[layer][0, head]
