"""Forced decoding reads the inputs of ``generate`` as ``generate`` does, against the scores of its own search."""

import pytest
import torch
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    CLIPVisionConfig,
    GemmaConfig,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    OPTConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    SiglipVisionConfig,
    XLNetConfig,
    XLNetLMHeadModel,
)

from hf_sparse import (
    Lexicon,
    certify,
    compare_with_empty,
    condition,
    enumerate_support,
    exact_search,
    score_sequences,
    sparsify,
    step_supports,
)
from hf_sparse.cache_name import CACHE
from tests.enumeration import model_and_inputs
from tests.peft_version import needs_fitting_peft
from tests.tiny_models import BOS, DECODER, EOS, PAD, TOKENS, tiny_model, tokens

IMAGE = 29
TEXT = {"vocab_size": 30, "num_key_value_heads": 2, "initializer_range": 0.5, **DECODER, **TOKENS}
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "initializer_range": 1.0,
}  # fmt: skip
PROMPT = torch.tensor([[BOS, IMAGE, IMAGE, IMAGE, IMAGE, 5, 6]])


def llava():
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_index=IMAGE
    )
    return LlavaForConditionalGeneration(config), {"input_ids": PROMPT, "pixel_values": torch.randn(1, 3, 8, 8)}


def qwen2_vl():
    vision = {
        "depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 2, "spatial_merge_size": 2,
        "temporal_patch_size": 1, "in_channels": 3, "mlp_ratio": 2,
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    tokens = {"image_token_id": IMAGE, "vision_start_token_id": 28, "vision_end_token_id": 27, "video_token_id": 26}
    config = Qwen2VLConfig(text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, **tokens)
    ids = torch.tensor([[1, 28, IMAGE, IMAGE, IMAGE, IMAGE, 27, 5], [1, 28, IMAGE, IMAGE, IMAGE, IMAGE, 27, 6]])
    images = {"pixel_values": torch.randn(32, 12), "image_grid_thw": torch.tensor([[1, 4, 4]] * 2)}
    return Qwen2VLForConditionalGeneration(config), {
        "input_ids": ids, "mm_token_type_ids": (ids == IMAGE).long(), **images,
    }  # fmt: skip


def pali_gemma():
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**VISION),
        text_config=GemmaConfig(**TEXT, head_dim=8),
        image_token_index=IMAGE,
        projection_dim=32,
    )
    return PaliGemmaForConditionalGeneration(config), llava()[1]


def blip2():
    text = OPTConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, **TOKENS)
    text.word_embed_proj_dim = 16
    former = {**VISION, "vocab_size": 20, "encoder_hidden_size": 16}
    config = Blip2Config(
        vision_config=VISION, qformer_config=former, text_config=text, num_query_tokens=4, image_token_index=IMAGE
    )
    return Blip2ForConditionalGeneration(config), llava()[1]


def kosmos2():
    text = {"vocab_size": 30, "embed_dim": 16, "layers": 1, "ffn_dim": 16, "attention_heads": 2}
    model = Kosmos2ForConditionalGeneration(Kosmos2Config(text_config=text, vision_config=VISION, latent_query_num=4))
    ids, images = torch.tensor([[1, 3, 3, 3, 3, 5]]), torch.randn(1, 3, 8, 8)
    return model, {"input_ids": ids, "pixel_values": images, "image_embeds_position_mask": ids == 3}


def xlnet():
    config = XLNetConfig(vocab_size=20, d_model=16, n_layer=1, n_head=2, d_inner=16)
    return XLNetLMHeadModel(config), {"input_ids": torch.tensor([[3, 4, 5]])}


def made(build):
    torch.manual_seed(0)
    model, inputs = build()
    model.generation_config.update(**TOKENS)
    return sparsify(model.eval(), head="entmax15"), inputs


def check_scores(model, inputs, **options):
    settings = {"do_sample": False, "num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.0}
    settings |= {"max_new_tokens": 3, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(**inputs, **settings, **options)
    special = {name: token for name, token in options.items() if name.endswith("token_id")}
    scores = score_sequences(model, inputs, output.sequences, **special)
    assert (scores.normalized > -20).all()
    torch.testing.assert_close(scores.normalized.float(), output.sequences_scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("build", [llava, qwen2_vl])
def test_images_are_read(build):
    model, inputs = made(build)
    check_scores(model, inputs)
    without = {"input_ids": inputs["input_ids"], "attention_mask": torch.ones_like(inputs["input_ids"])}
    sequences = model.generate(**inputs, do_sample=False, max_new_tokens=3)
    seen, unseen = (score_sequences(model, given, sequences).normalized for given in (inputs, without))
    assert not torch.allclose(seen, unseen, atol=1e-2)


def test_types_of_tokens_are_read():
    model, inputs = model_and_inputs("gpt2", "entmax15")
    inputs["token_type_ids"] = torch.tensor([[5, 5, 5, 6]])
    check_scores(model, inputs)
    found = enumerate_support(model, inputs, min_probability=0.02, max_new_tokens=4)
    for string, p in zip(found.sequences, found.probabilities, strict=True):
        steps = step_supports(model, inputs, string)
        product = torch.tensor([dict(zip(s.tokens, s.probabilities))[s.chosen] for s in steps]).prod()
        assert float(product) == pytest.approx(p, rel=1e-3)
    compared = compare_with_empty(model, inputs, num_beams=2, max_new_tokens=2)
    log_p = model.generate(
        **inputs, do_sample=False, max_new_tokens=1, return_dict_in_generate=True, output_scores=True
    ).scores[0][0, EOS]
    assert float(compared.empty_scores.normalized.exp()) == pytest.approx(float(log_p.exp()), abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_without_a_mask_padding_is_hidden_as_generate_hides_it(name):
    model, _ = model_and_inputs(name, "entmax15")
    ids = torch.tensor([[PAD, PAD, 3, 6, 4], [3, 5, 4, 6, 5]])
    bare = {"input_ids": ids}
    hidden, seen, other = (
        {**bare, "attention_mask": mask.long()} for mask in (ids != PAD, torch.ones_like(ids), ids != 6)
    )
    check_scores(model, bare)
    check_scores(model, bare, pad_token_id=6)
    sequences = model.generate(ids, do_sample=False, max_new_tokens=3)

    def scores(given, **special):
        return score_sequences(model, given, sequences, **special).normalized

    assert torch.equal(scores(bare), scores(hidden))
    assert not torch.allclose(scores(bare), scores(seen))
    assert torch.equal(scores(bare, pad_token_id=6), scores(other))
    # Where padding may end a string generate does not know it from a token.
    assert torch.equal(scores(bare, eos_token_id=[EOS, PAD]), scores(seen, eos_token_id=[EOS, PAD]))
    compared, expected = (
        compare_with_empty(model, given, num_beams=2, max_new_tokens=2, pad_token_id=6) for given in (bare, other)
    )
    assert torch.equal(compared.hypothesis_scores.normalized, expected.hypothesis_scores.normalized)
    assert torch.equal(compared.empty_scores.normalized, expected.empty_scores.normalized)
    string = sequences[0, 5:].tolist()
    bare, hidden = ({name: value[:1] for name, value in given.items()} for given in (bare, hidden))
    assert step_supports(model, bare, string) == step_supports(model, hidden, string)


def test_settings_of_generate_that_score_nothing_do_not_matter():
    model, inputs = model_and_inputs("gpt2", "entmax15")
    sequences = torch.cat([inputs["input_ids"], torch.tensor([[4, EOS]])], dim=1)
    expected = score_sequences(model, inputs, sequences).normalized
    model.generation_config.update(stop_strings=["a"], num_beams=3, num_return_sequences=2, max_new_tokens=5)
    assert torch.equal(score_sequences(model, inputs, sequences).normalized, expected)


def test_certificates_without_a_mask_are_those_of_the_run_that_generate_makes():
    model, _ = model_and_inputs("gpt2", None)
    model = sparsify(model, attn={"name": "entmax15", "temperature": 0.2}).double()
    ids = torch.tensor([[PAD, PAD, 3, 4, 6]])
    sequences = model.generate(ids, do_sample=False, max_new_tokens=3)
    (found,) = certify(model, {"input_ids": ids}, sequences)
    assert found == certify(model, {"input_ids": ids, "attention_mask": (ids != PAD).long()}, sequences)[0]
    assert found.tokens == [2, 3, 4]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (pali_gemma, "a prompt of PaliGemmaForConditionalGeneration sees what follows it"),
        (xlnet, r"XLNetLMHeadModel gives logits of 1 positions for \d tokens"),
        (blip2, "Blip2ForConditionalGeneration decodes from inputs_embeds"),
        (kosmos2, "Kosmos2ForConditionalGeneration lets its Kosmos2TextForCausalLM decode, .* exact_search"),
    ],
)
def test_what_one_pass_does_not_score_is_refused(build, message):
    model, inputs = made(build)
    sequences = torch.cat([inputs["input_ids"], torch.tensor([[4, 5]])], dim=1)
    with pytest.raises(ValueError, match=message):
        score_sequences(model, inputs, sequences)


@needs_fitting_peft
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_prefix_of_peft_is_read_once(name):
    model, inputs = model_and_inputs(name, "entmax15")
    model = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    torch.nn.init.normal_(model.prompt_encoder["default"].embedding.weight)
    padding = {"input_ids": PAD, "attention_mask": 0}
    padded = {key: torch.nn.functional.pad(ids, (2, 0), value=padding[key]) for key, ids in inputs.items()}
    found = model.generate(
        **padded, max_new_tokens=3, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    steps = step_supports(model, padded, found.sequences[0, padded["input_ids"].shape[1] :].tolist())
    for step, logits in zip(steps, found.logits, strict=True):
        p = logits[0].softmax(-1)
        torch.testing.assert_close(torch.tensor(step.probabilities), p[step.tokens], atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="PrefixTuningConfig puts a prompt before every input"):
        certify(model, inputs, found.sequences[:, 2:])


def test_a_prompt_of_peft_is_not_scored_by_one_pass():
    model, inputs = model_and_inputs("llama", "entmax15")
    model = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    sequences = torch.cat([inputs["input_ids"], torch.tensor([[4, 5]])], dim=1)
    with pytest.raises(ValueError, match="PeftModelForCausalLM gives logits of"):
        score_sequences(model, inputs, sequences)
    with pytest.raises(ValueError, match="this LlamaForCausalLM: PromptTuningConfig puts a prompt before every input"):
        certify(model, inputs, sequences)


@pytest.mark.parametrize("adapter", [pytest.param(PrefixTuningConfig, marks=needs_fitting_peft), PromptTuningConfig])
@pytest.mark.parametrize("name", ["t5", "bart"])
@torch.no_grad()
def test_a_prompt_of_peft_counts_in_the_scores_of_an_encoder_decoder(name, adapter):
    """The oracle is what greedy search said of each of its tokens."""
    model, inputs = sparsify(tiny_model(name), head="entmax15"), {"input_ids": tokens()}
    model = get_peft_model(model, adapter(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)).eval()
    torch.nn.init.normal_(model.prompt_encoder["default"].embedding.weight)
    found = model.generate(
        **inputs, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    log_p = torch.stack(found.logits, dim=1).log_softmax(-1)
    expected = log_p.gather(-1, found.sequences[:, 1:, None]).sum((1, 2)).double()
    torch.testing.assert_close(score_sequences(model, inputs, found.sequences).normalized, expected, atol=1e-5, rtol=0)


def test_inputs_that_sequences_do_not_show_are_refused_by_name():
    model, inputs = model_and_inputs("gpt2", "entmax15")
    embedded = {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]).detach()}
    cached = {**inputs, CACHE: model(**inputs)[CACHE]}
    sequences = torch.cat([inputs["input_ids"], torch.tensor([[4, 5]])], dim=1)
    for given, message in (
        (embedded, "GPT2LMHeadModel decodes from inputs_embeds"),
        ({**inputs, **embedded}, "GPT2LMHeadModel decodes from inputs_embeds"),
        (cached, f"GPT2LMHeadModel decodes from {CACHE}"),
        ({"attention_mask": inputs["attention_mask"]}, "must have input_ids, .*, had attention_mask"),
    ):
        for score in (
            lambda given=given: score_sequences(model, given, sequences),
            lambda given=given: step_supports(model, given, [4, 5]),
            lambda given=given: compare_with_empty(model, given, max_new_tokens=2),
        ):
            with pytest.raises(ValueError, match=message):
                score()
    with pytest.raises(ValueError, match=r"not used by the model: \['pixel_values'\]"):
        score_sequences(model, {**inputs, "pixel_values": torch.ones(1, 3)}, sequences)


@pytest.mark.parametrize("masked", [True, False])
def test_prompts_that_are_padded_on_the_right_are_refused_where_a_decoder_would_go_on_from_padding(masked):
    model = sparsify(tiny_model("llama"), attn="sparsemax", head="sparsemax").eval()
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[1, 3:] = 0
    padded = {"input_ids": tokens(2, 5).masked_fill(mask == 0, PAD)} | ({"attention_mask": mask} if masked else {})
    second = {name: value[1:] for name, value in padded.items()}
    longer = torch.cat([padded["input_ids"], torch.full((2, 1), EOS)], 1)
    for row, call in (
        (1, lambda: exact_search(model, padded, max_new_tokens=2)),
        (1, lambda: condition(model, padded, Lexicon([[7]]), max_new_tokens=2)),
        (1, lambda: score_sequences(model, padded, longer)),
        (1, lambda: compare_with_empty(model, padded, max_new_tokens=2)),
        (0, lambda: enumerate_support(model, second, max_new_tokens=2)),
        (0, lambda: step_supports(model, second, [7, EOS])),
        (0, lambda: certify(model, second, longer[1:])),
    ):
        with pytest.raises(ValueError, match=rf"padded on the left, .* row {row} ends with padding"):
            call()
    left = {name: value.flip(1) for name, value in padded.items()}
    assert len(exact_search(model, left, max_new_tokens=2)) == 2
