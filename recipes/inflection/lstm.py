"""The encoder-decoder of the paper as a model of Transformers: LSTMs, with attention over the states of the encoder.

Peters, Niculae and Martins 2019, section 2: a bidirectional encoder; a decoder that scores states h of the encoder by
s' W h against its own state s, and whose output tanh(V [c; s]), c their weighted average, is fed to its next step. The
decoder starts at the last states of both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.models.bart.modeling_bart import shift_tokens_right

from .model import DROPOUT, EXTRA_LENGTH

MODEL_TYPE = "lstm_encoder_decoder"
State = tuple[Tensor, Tensor]  # of one LSTM: hidden state and cell, each (batch, width)


class LSTMConfig(PreTrainedConfig):
    """Sizes of the model; ``hidden_size`` is that of embeddings and of states, half of which each direction of the
    encoder has."""

    model_type = MODEL_TYPE

    vocab_size: int = 0
    hidden_size: int = 192
    num_hidden_layers: int = 2
    dropout: float = DROPOUT
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = False
    use_cache: bool = False


class LSTMAttention(nn.Module):
    """Attention of one head with bilinear scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(2 * width, width, bias=False)

    def forward(self, query: Tensor, keys: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """The output (batch, width) and the weights (batch, 1, 1, keys) of a query (batch, width)."""
        scores = (self.score(query)[:, None] @ keys.mT)[:, None].masked_fill(~visible[:, None, None], -torch.inf)
        weights = nn.functional.softmax(scores, dim=-1)
        context = (weights[:, 0] @ keys)[:, 0]
        return self.out(torch.cat([context, query], -1)).tanh(), weights


def last_states(states: Tensor, visible: Tensor) -> Tensor:
    """The last state of each direction, side by side (batch, width), of states padded on the right."""
    half = states.shape[-1] // 2
    rows = torch.arange(len(states), device=states.device)
    return torch.cat([states[rows, visible.sum(1) - 1, :half], states[:, 0, half:]], -1)


class LSTMEncoder(nn.Module):
    """Layers of bidirectional LSTMs."""

    main_input_name = "input_ids"

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.lstm = nn.LSTM(
            config.hidden_size,
            config.hidden_size // 2,
            config.num_hidden_layers,
            batch_first=True,
            dropout=config.dropout,
            bidirectional=True,
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """States (batch, length, width) of ids padded on the right.

        Raises:
            ValueError: padding elsewhere.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if bool((mask[:, 1:] > mask[:, :-1]).any()):
            raise ValueError(
                "the encoder reads rows that are padded on the right, and attention_mask hides tokens before others; "
                'set tokenizer.padding_side = "right"'
            )
        packed = pack_padded_sequence(self.embedding(input_ids), mask.sum(-1).cpu(), True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], True, total_length=input_ids.shape[1])
        return BaseModelOutput(last_hidden_state=states)


class LSTMDecoder(nn.Module):
    """Layers of LSTM, and attention to the encoder at every step, whose output the next step reads."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        inputs = [2 * config.hidden_size] + [config.hidden_size] * (config.num_hidden_layers - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(size, config.hidden_size) for size in inputs)
        self.cross_attention = LSTMAttention(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def step(self, inputs: Tensor, states: Sequence[State]) -> list[State]:
        """States of all layers after one more input (batch, 2 width)."""
        after: list[State] = []
        for cell, state in zip(self.cells, states):
            after.append(cell(inputs, state))
            inputs = self.dropout(after[-1][0])
        return after

    def forward(self, input_ids: Tensor, keys: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (batch, length, width) for ids, and weights of attention (batch, 1, length, keys)."""
        start = last_states(keys, visible)
        states = [(start, torch.zeros_like(start)) for _ in self.cells]
        output, outputs, weights = torch.zeros_like(start), [], []
        for embedded in self.embedding(input_ids).unbind(1):
            states = self.step(torch.cat([embedded, output], -1), states)
            output, seen = self.cross_attention(self.dropout(states[-1][0]), keys, visible)
            output = self.dropout(output)
            outputs.append(output)
            weights.append(seen)
        return torch.stack(outputs, 1), torch.cat(weights, 2)


class LSTMForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """Encoder, decoder and a head over the vocabulary, as in any sequence-to-sequence model of Transformers."""

    config_class = LSTMConfig
    accepts_loss_kwargs = False  # the loss is a mean over one batch

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        self.encoder = LSTMEncoder(config)
        self.decoder = LSTMDecoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave weights as torch draws them."""

    def get_input_embeddings(self) -> nn.Module:
        """Those of the encoder; the decoder has its own."""
        return self.encoder.embedding

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (batch, target, vocabulary) of targets given sources, and the loss of ``labels`` (-100: ignored)."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        keys = encoder_outputs[0]
        visible = torch.ones_like(keys[..., 0]) if attention_mask is None else attention_mask
        if decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs, weights = self.decoder(decoder_input_ids, keys, visible.bool())
        logits = self.lm_head(outputs)
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cross_attentions=(weights,) if output_attentions else None,
            encoder_last_hidden_state=keys,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels one to the right, behind the first token of the decoder."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)


AutoConfig.register(MODEL_TYPE, LSTMConfig)
AutoModelForSeq2SeqLM.register(LSTMConfig, LSTMForConditionalGeneration)


def build_lstm(tokenizer: PreTrainedTokenizerFast, longest_form: int, seed: int) -> LSTMForConditionalGeneration:
    """A fresh dense model for a tokenizer, as ``build_model`` makes a transformer."""
    set_seed(seed)
    config = LSTMConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
    )
    model = LSTMForConditionalGeneration(config)
    model.generation_config.max_new_tokens = longest_form + EXTRA_LENGTH
    return model
