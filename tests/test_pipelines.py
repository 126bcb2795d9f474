"""Pipelines of text, speech, images, and images with text answer from the sparse model.

The oracle of attention knows nothing of this package: the dense model with eager attention whose own softmaxes are
sparsemax of the package ``entmax``.
"""

import numbers
import traceback

import numpy as np
import pytest
import torch
from entmax import sparsemax
from torch.overrides import TorchFunctionMode
from transformers import TextToAudioPipeline, pipeline
from transformers.pipelines import SUPPORTED_TASKS

from hf_sparse import probabilities, sparsify
from tests.tiny_pipelines import FEW_TOKENS, IMAGE, PIPELINES, SOUND, llava, spectrograms, speech_recognition
from tests.word_tokenizer import word_tokenizer

WITHOUT_WORDS = {
    "image-segmentation",
    "object-detection",
    "depth-estimation",
    "video-classification",
    "mask-generation",
    "keypoint-matching",
}


class SparsemaxAsAttention(TorchFunctionMode):
    """Every softmax in a file of a model, and none of a pipeline or of decoding, is sparsemax."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax) and called_by_a_model():
            return sparsemax(args[0].float(), dim=-1).to(args[0].dtype)
        return func(*args, **(kwargs or {}))


def called_by_a_model():
    callers = (frame.filename for frame in reversed(traceback.extract_stack()))
    return "modeling_" in next(name for name in callers if "/torch/" not in name and name != __file__)


def answer(name, model, options, given, call):
    torch.manual_seed(0)
    ask = pipeline(name.split(" by ")[0], model=model, device="cpu", **options)
    return ask(**call) if given is None else ask(given, **call)


def leaves(value):
    """Numbers and texts of a pipeline's answer, in order."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    if isinstance(value, torch.Tensor | np.ndarray):
        return np.asarray(value, dtype=float).ravel().tolist()
    return [float(value) if isinstance(value, numbers.Number | np.number) else value]


def same(found, expected):
    return len(found) == len(expected) and all(
        a == b if isinstance(b, str) or b is None else a == pytest.approx(b, rel=1e-3, abs=1e-5)
        for a, b in zip(found, expected)
    )


def test_no_task_is_forgotten():
    assert {name.split(" by ")[0] for name in PIPELINES} | WITHOUT_WORDS == set(SUPPORTED_TASKS)


@pytest.mark.parametrize("name", PIPELINES)
@torch.no_grad()
def test_a_pipeline_answers_by_sparse_attention(name, tmp_path, monkeypatch):
    # It asks for torchvision, which it needs for videos alone.
    monkeypatch.setattr("transformers.pipelines.any_to_any.requires_backends", lambda *_: None)
    model, *call = PIPELINES[name](tmp_path)
    dense = leaves(answer(name, model, *call))
    model.set_attn_implementation("eager")
    with SparsemaxAsAttention():
        expected = leaves(answer(name, model, *call))
    found = leaves(answer(name, sparsify(model, attn="sparsemax"), *call))
    assert same(found, expected)
    assert not same(found, dense)


@torch.no_grad()
def test_a_pipeline_transcribes_from_the_sparse_distribution(tmp_path):
    model, options, *_ = speech_recognition(tmp_path)
    model = sparsify(model, attn="entmax15", head="entmax15")
    call = {"max_new_tokens": 4, "num_beams": 2}
    found = answer("automatic-speech-recognition", model, options, SOUND, {"generate_kwargs": call})["text"]
    features = options["feature_extractor"](SOUND, sampling_rate=16000, return_tensors="pt").input_features
    ids = model.generate(input_features=features, **call)
    assert found == options["tokenizer"].decode(ids[0], skip_special_tokens=True)


@torch.no_grad()
def test_a_pipeline_answers_to_an_image_from_the_sparse_distribution():
    model, options = llava()
    model, processor = sparsify(model, attn="entmax15", head="entmax15"), options["processor"]
    text = "<image> w5 w6"
    call = {"images": IMAGE, "text": text, "generate_kwargs": FEW_TOKENS}
    (found,) = answer("image-text-to-text", model, options, None, call)
    inputs = processor(images=IMAGE, text=text, return_tensors="pt")
    ids = model.generate(**inputs, **FEW_TOKENS)[0, inputs.input_ids.shape[1] :]
    assert found["generated_text"] == f"{text} {processor.tokenizer.decode(ids)}"


@torch.no_grad()
def test_a_decision_is_the_sparse_distribution_given_that_it_is_one_of_the_options(tmp_path):
    model, options, request, call = PIPELINES["decision"](tmp_path)
    model = sparsify(model, head="entmax15")
    ids = word_tokenizer()("w5 w6 w7 w8", return_tensors="pt").input_ids
    p = probabilities(model, model(ids).logits[0, -1])
    p[:3] = -1  # special tokens are no labels
    likeliest, second = p.topk(2).indices.tolist()
    (impossible, *_) = (p == 0).nonzero().flatten().tolist()
    for other in (second, impossible):
        options["decision_config"].labels["noul"] = [f"w{likeliest}", f"w{other}"]
        found = answer("decision", model, options, request, call)["one"]
        assert found["noul"] == pytest.approx(float(p[likeliest] / (p[likeliest] + p[other])), rel=1e-4)


@torch.no_grad()
def test_what_a_sparse_model_speaks_is_sound_and_no_spectrogram():
    model, vocoder = spectrograms()
    example = {
        "input_ids": torch.tensor([[5, 6]]),
        "decoder_input_values": torch.zeros(1, 4, 8),
        "speaker_embeddings": torch.zeros(1, 4),
    }
    sparsify(model, attn="entmax15", example=example)
    ask = TextToAudioPipeline(model=model, tokenizer=word_tokenizer(), vocoder=vocoder)
    assert ask.sampling_rate == vocoder.config.sampling_rate
    torch.manual_seed(0)  # its layers before the decoder always drop
    found = ask("w5 w6", forward_params={"speaker_embeddings": torch.zeros(1, 4)})["audio"]
    torch.manual_seed(0)
    ids = word_tokenizer()("w5 w6", return_tensors="pt").input_ids
    expected = model.generate_speech(ids, torch.zeros(1, 4), vocoder=vocoder)
    assert np.array_equal(found, expected.numpy())
