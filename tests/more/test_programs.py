"""Programs of others that load a model from its folder: ``python -m hf_sparse run`` lets them load a sparse one."""

import json
import os
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch
from transformers import AutoModelForCausalLM

import hf_sparse
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer

RUN = [sys.executable, "-m", "hf_sparse", "run"]
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
BATCHES = ["--continuous-batching", *["--cb-num-blocks", "16", "--cb-block-size", "16", "--cb-max-batch-tokens", "32"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sparse model as somebody would have shared it."""
    path = tmp_path_factory.mktemp("sparse")
    hf_sparse.sparsify(tiny_model("llama"), attn="entmax15", head="entmax15").save_pretrained(path)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(path)
    return path


def answer(port, request=None):
    """What a server says, or None while it does not listen."""
    body = None if request is None else json.dumps(request).encode()
    place = f"http://localhost:{port}/" + ("health" if request is None else "v1/chat/completions")
    try:
        with urlopen(Request(place, body, {"Content-Type": "application/json"}), timeout=60) as reply:
            return json.load(reply)
    except (URLError, ConnectionError):
        return None


@pytest.mark.parametrize("options", [[], BATCHES], ids=["alone", "continuous batching"])
def test_a_server_answers_as_generate_does(folder, options):
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    command = [*RUN, "transformers", "serve", str(folder), "--device", "cpu", "--port", str(port), *options]
    server = subprocess.Popen(command, env=OFFLINE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 120
        while answer(port) is None and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        message = {"role": "user", "content": "w5 w6 w7"}
        request = {"model": str(folder), "messages": [message], "max_tokens": 5, "temperature": 0, "stream": False}
        told = answer(port, request)
    finally:
        server.terminate()
        output, _ = server.communicate(timeout=60)
    assert told is not None, output
    model, ids = AutoModelForCausalLM.from_pretrained(folder), torch.tensor([[5, 6, 7]])
    written = model.generate(ids, max_new_tokens=5, do_sample=False)[0, 3:]
    assert told["choices"][0]["message"]["content"] == word_tokenizer().decode(written, skip_special_tokens=True)


@torch.no_grad()
def test_the_harness_scores_what_the_model_scores(folder, tmp_path):
    rows = [{"context": "w5 w6 w7", "choices": ["w8", "w9 w10"], "gold": 0}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{context}}",
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "choice.yaml").write_text(json.dumps(task))
    program = [
        "lm_eval",
        "--model",
        "hf",
        "--model_args",
        f"pretrained={folder}",
        "--tasks",
        "choice",
        "--device",
        "cpu",
    ]
    options = ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"), "--log_samples"]
    run = subprocess.run([*RUN, *program, *options], env=OFFLINE, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (file,) = (tmp_path / "out").rglob("samples_*.jsonl")
    sample = json.loads(file.read_text())
    found = [float(scored[0]) for scored in sample["filtered_resps"]]
    model = AutoModelForCausalLM.from_pretrained(folder)
    for choice, score in zip(([8], [9, 10]), found):
        ids = torch.tensor([[5, 6, 7, *choice]])
        log_p = model(ids).logits[0, 2:-1].gather(-1, ids[0, 3:, None])
        assert score == pytest.approx(float(log_p.sum()), rel=1e-4)


def test_a_training_script_loads_trains_and_saves_a_sparse_model(folder, tmp_path):
    (tmp_path / "data").mkdir()
    rows = [{"text": "w5 w6 w7 w8 w9"}, {"text": "w10 w11 w12"}]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    program = ["-m", "trl.scripts.sft", "--model_name_or_path", str(folder), "--dataset_name", str(tmp_path / "data")]
    options = ["--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--use_cpu", "--report_to", "none"]
    run = subprocess.run([*RUN, *program, *options, "--bf16", "False"], env=OFFLINE, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    before, after = map(AutoModelForCausalLM.from_pretrained, (folder, tmp_path / "out"))
    assert hf_sparse.sparse_config(after) == hf_sparse.sparse_config(before)
    assert not torch.equal(after.lm_head.weight, before.lm_head.weight)
