"""``python -m hf_sparse``: its commands do what the functions of their names do."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)

import hf_sparse
from hf_sparse.__main__ import main
from hf_sparse.conversion.text_file import text_batches
from tests.tiny_models import EOS, tiny_model, tokens
from tests.word_tokenizer import word_tokenizer

LINES = ["w5 w6 w7 w8", "w9 w10", "w11 w12 w13 w14 w15", "w16 w17 w18"]
DAMAGED = {  # a copy of the model's folder: one file of it, and what stands there instead
    "damaged": ("model.safetensors", "{"),
    "unreadable": ("tokenizer.json", "{"),
    "emptied": ("pytorch_model.bin", ""),
    "pickled": ("pytorch_model.bin", "gggg"),
    "listed": ("config.json", "[1]"),
    "unnamed": ("config.json", '{"model_type": "llama", "architectures": ["NoSuch"]}'),
}


@pytest.fixture
def dense(tmp_path):
    """A folder with a tiny Llama and its tokenizer, and beside it a text."""
    tiny_model("llama").save_pretrained(tmp_path / "dense")
    word_tokenizer().save_pretrained(tmp_path / "dense")
    (tmp_path / "text").write_text("\n".join(LINES) + "\n")
    return tmp_path / "dense"


def test_it_runs_as_a_module(dense):
    command = [
        sys.executable,
        "-m",
        "hf_sparse",
        "convert",
        str(dense),
        str(dense.parent / "out"),
        "--attn",
        "entmax15",
    ]
    quiet = {**os.environ, "DS_ACCELERATOR": "cpu"}  # DeepSpeed, where it is installed, prints what it finds
    run = subprocess.run(command, capture_output=True, text=True, env=quiet)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "part      layers  map",
        'decoder   0, 1    {"name": "entmax15"}',
        "head              softmax",
    ]
    assert f"reading {dense}" in run.stderr.splitlines()  # after what torchao, where it is installed, says
    assert hf_sparse.is_sparse(hf_sparse.from_pretrained(dense.parent / "out"))


def test_convert_saves_what_sparsify_makes_with_the_tokenizer(dense, tmp_path, capsys):
    head = '{"name": "entmax", "alpha": 1.33}'
    assert main(["convert", str(dense), str(tmp_path / "out"), "--attn", "sparsemax", "--head", head]) == 0
    found = hf_sparse.from_pretrained(tmp_path / "out")
    expected = hf_sparse.sparsify(tiny_model("llama"), attn="sparsemax", head={"name": "entmax", "alpha": 1.33})
    assert hf_sparse.sparse_config(found) == hf_sparse.sparse_config(expected)
    assert torch.equal(found(tokens()).logits, expected(tokens()).logits)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert "head" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("out", ["out", "dense"])
def test_convert_keeps_the_processor_of_a_model_that_reads_no_text(out, tmp_path):
    dense, image = tmp_path / "dense", Image.new("RGB", (32, 32), "red")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **sizes)).save_pretrained(dense)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(dense)
    assert main(["convert", str(dense), str(tmp_path / out), "--attn", "entmax15"]) == 0
    classify = pipeline("image-classification", str(tmp_path / out))
    assert hf_sparse.is_sparse(classify.model)
    assert classify.image_processor.size == {"height": 16, "width": 16}
    assert len(classify(image)) == 2


def test_doctor_prints_its_diagnosis_and_exits_by_it(dense, capsys, tmp_path):
    assert main(["doctor", str(dense)]) == 0  # entmax15 in attention
    assert capsys.readouterr().out.startswith("LlamaForCausalLM: sound")
    assert main(["doctor", str(dense), "--attn", '{"cross": "entmax15"}']) == 1
    assert "not sound" in capsys.readouterr().out


def test_compare_prints_the_comparison(dense, tmp_path, capsys):
    arguments = ["--attn", "entmax15", "--data", str(tmp_path / "text"), "--budget", "0.5", "--batch-size", "3"]
    assert main(["compare", str(dense), *arguments]) == 0
    loader = text_batches(tmp_path / "text", tiny_model("llama"), word_tokenizer(), batch_size=3)
    expected = hf_sparse.compare(tiny_model("llama"), loader, "entmax15", budget=0.5, progress=False)
    assert capsys.readouterr().out == f"{expected}\n"


def test_calibrate_saves_fitted_settings_of_a_dense_model_and_of_a_sparse_one(dense, tmp_path, capsys):
    loader = text_batches(tmp_path / "text", tiny_model("llama"), word_tokenizer())
    expected = hf_sparse.sparsify(tiny_model("llama"), "entmax15", "entmax15")
    report = hf_sparse.calibrate(expected, loader, per_head=False, edges=0.9, classes=5.0, progress=False)
    common = ["--data", str(tmp_path / "text"), "--no-per-head", "--edges", "0.9", "--classes", "5"]
    maps = ["--attn", "entmax15", "--head", "entmax15"]
    assert main(["calibrate", str(dense), str(tmp_path / "fitted"), *maps, *common]) == 0
    assert capsys.readouterr().out == f"{report}\n"
    main(["convert", str(dense), str(tmp_path / "bare"), *maps])
    main(["calibrate", str(tmp_path / "bare"), str(tmp_path / "again"), *common])
    for name in ("fitted", "again"):
        found = hf_sparse.sparse_config(hf_sparse.from_pretrained(tmp_path / name))
        assert found == hf_sparse.sparse_config(expected)


def test_calibrate_keeps_alpha_and_attention_where_asked(dense, tmp_path):
    head = {"name": "entmax", "alpha": 1.7}
    main(["convert", str(dense), str(tmp_path / "bare"), "--attn", "entmax15", "--head", json.dumps(head)])
    common = ["--data", str(tmp_path / "text"), "--classes", "5", "--no-fit-alpha", "--no-fit-attention"]
    main(["calibrate", str(tmp_path / "bare"), str(tmp_path / "fitted"), *common])
    before, after = (
        hf_sparse.sparse_config(hf_sparse.from_pretrained(tmp_path / name)) for name in ("bare", "fitted")
    )
    assert after.attn == before.attn
    assert after.head.map_settings["alpha"] == 1.7
    assert after.head.temperature != before.head.temperature


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "{dense}", "{out}", "--attn", "entmx"], "unknown sparse map 'entmx'"),
        (["convert", "{dense}", "{out}", "--head", '{"name"'], "not JSON"),
        (["convert", "{dense}", "{out}"], "nothing to make sparse"),
        (
            ["convert", "{dense}", "{out}", "--attn", '["entmax15", null]'],
            "a list of maps, one for each layer, goes with",
        ),
        (
            ["convert", "{dense}", "{out}", "--head", '{"name": "entmax", "alpha": true}'],
            "must be a number from 1 to 64",
        ),
        (["compare", "{dense}", "--attn", "entmax15", "--data", "{empty}"], "has no line of text"),
        (["compare", "{dense}", "--attn", "entmax15", "--data", "{missing}"], "No such file"),
        (["convert", "{damaged}", "{out}", "--attn", "entmax15"], "damaged cannot be read: Error while deserializing"),
        (["convert", "{unreadable}", "{out}", "--attn", "entmax15"], "Expecting property name"),
        (["convert", "{emptied}", "{out}", "--attn", "entmax15"], "emptied cannot be read: the file ends too early"),
        (["convert", "{pickled}", "{out}", "--attn", "entmax15"], "pickled cannot be read: Weights only load failed"),
        (["convert", "{listed}", "{out}", "--attn", "entmax15"], "config.json of {listed} is no configuration"),
        (["convert", "{unnamed}", "{out}", "--attn", "entmax15"], "architectures was ['NoSuch']"),
        (["calibrate", "{dense}", "{empty}", "--attn", "entmax15", "--data", "{missing}"], "empty is a file; give"),
        (["convert", "{sparse}", "{out}", "--attn", "sparsemax"], "{sparse} is sparse already: leave --attn and"),
        (["doctor", "{adapter}"], "{adapter} holds an adapter without hf_sparse.json"),
    ],
)
def test_what_the_functions_refuse_ends_with_their_message(arguments, message, dense, tmp_path, capsys):
    (tmp_path / "empty").write_text("\n\n")
    for folder, (file, text) in DAMAGED.items():
        shutil.copytree(dense, tmp_path / folder)
        if file == "pytorch_model.bin":
            (tmp_path / folder / "model.safetensors").unlink()
        (tmp_path / folder / file).write_text(text)
        hf_sparse.sparsify(tiny_model("llama"), attn="entmax15").save_pretrained(tmp_path / "sparse")
    get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    places = ("dense", "sparse", "adapter", "out", "empty", "missing", *DAMAGED)
    paths = {name: str(tmp_path / name) for name in places}
    with pytest.raises(SystemExit) as stopped:
        main([paths.get(word.strip("{}"), word) if word.endswith("}") else word for word in arguments])
    assert stopped.value.code == 2
    assert message.format(**paths) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["llama", "t5", "marian"])  # whose tokenizers fail late, early and not at all
def test_a_model_without_its_tokenizer_is_not_fitted_to_unknown_tokens(kind, tmp_path, capsys):
    tiny_model(kind).save_pretrained(tmp_path / "bare")
    (tmp_path / "pairs").write_text("w5 w6 w7\tw8 w9\nw10\tw11 w12 w13\n")
    bare, maps = str(tmp_path / "bare"), ["--attn", "entmax15", "--data", str(tmp_path / "pairs")]
    for call in (["calibrate", bare, str(tmp_path / "out"), *maps], ["compare", bare, *maps]):
        with pytest.raises(SystemExit):
            main(call)
        assert f"{bare} has no tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_labels_of_a_text_are_those_of_each_kind_of_language_model(tmp_path):
    file = tmp_path / "pairs"
    file.write_text("w5 w6 w7\tw8 w9\nw10\tw11 w12 w13\n")
    (batch,) = text_batches(file, tiny_model("bart"), word_tokenizer())
    assert batch["input_ids"].tolist() == [[5, 6, 7], [10, 0, 0]]
    assert batch["labels"].tolist() == [[8, 9, -100], [11, 12, 13]]
    ended, tokenizer = tmp_path / "ended", word_tokenizer()
    ended.write_text("w5\tw8 </s>\nw10\tw11 w12 </s>\n")
    tokenizer.pad_token = tokenizer.eos_token
    (batch,) = text_batches(ended, tiny_model("bart"), tokenizer)
    assert batch["labels"].tolist() == [[8, EOS, -100], [11, 12, EOS]]
    file.write_text("w5 w6 w7\nw10\n")
    (batch,) = text_batches(file, tiny_model("gpt2"), word_tokenizer(), max_length=2)
    assert batch["labels"].tolist() == [[5, 6], [10, -100]]
    file.write_text("\n".join(["w5 w6 w7 w8 w9 w10"] * 8))
    tokenizer = word_tokenizer(mask_token="<mask>")
    (batch,) = text_batches(file, tiny_model("bert"), tokenizer)
    chosen = batch["labels"] != -100
    assert 0 < int(chosen.sum()) < 24
    assert bool((batch["input_ids"] == tokenizer.mask_token_id)[chosen].any())
    assert torch.equal(text_batches(file, tiny_model("bert"), tokenizer)[0]["labels"], batch["labels"])


def test_positions_that_begin_after_padding_are_fewer(tmp_path):
    """RoBERTa's first token has the position after that of padding."""
    settings = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RobertaConfig(**settings, intermediate_size=16, max_position_embeddings=12, pad_token_id=1)
    model = RobertaForMaskedLM(config)
    (tmp_path / "text").write_text(" ".join(["w5"] * 20))
    (batch,) = text_batches(tmp_path / "text", model, word_tokenizer(mask_token="<mask>"))
    assert batch["input_ids"].shape == (1, 10)
    assert model(**batch).logits.shape == (1, 10, 23)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("text", "w5 w6\nw7 w8\n".encode("utf-8-sig")),
        ("text", b"\r\nw5 w6\r\n \r\nw7 w8"),
        ("text.gz", gzip.compress(b"w5 w6\nw7 w8\n")),
        ("text", "w5\u2028w6\nw7\x0cw8\n".encode()),
    ],
    ids=["byte-order mark", "Windows", "gzip", "ends of no line"],
)
def test_a_line_of_a_text_is_a_line_however_it_was_written(name, data, tmp_path):
    (tmp_path / name).write_bytes(data)
    (batch,) = text_batches(tmp_path / name, tiny_model("gpt2"), word_tokenizer())
    assert batch["input_ids"].tolist() == [[5, 6], [7, 8]]


@pytest.mark.parametrize(("positions", "kept"), [(6, 6), (64, 32)])  # 32 is what the tokenizer says
def test_long_lines_are_cut_where_the_models_positions_end(positions, kept, tmp_path):
    (tmp_path / "text").write_text("w5 w6 w7 w8 " * 40)
    model = tiny_model("gpt2", n_positions=positions)
    (batch,) = text_batches(tmp_path / "text", model, word_tokenizer())
    assert batch["input_ids"].shape == (1, kept)
    assert torch.isfinite(model(**batch).loss)


def test_texts_that_no_loss_can_be_had_from_are_refused(tmp_path):
    file = tmp_path / "text"
    file.write_text("w5 w6\n")
    with pytest.raises(ValueError, match="needs one tab, between source and target, has 0: 'w5 w6'"):
        text_batches(file, tiny_model("bart"), word_tokenizer())
    with pytest.raises(ValueError, match="BertModel has no loss over the words of a text"):
        text_batches(file, tiny_model("bert").bert, word_tokenizer())
    file.write_text("w5\tw6\tCC-BY 2.0\n")
    with pytest.raises(ValueError, match="needs one tab, between source and target, has 2"):
        text_batches(file, tiny_model("bart"), word_tokenizer())
    file.write_bytes(b"w5 w6\n\xe9")
    with pytest.raises(ValueError, match="text must be UTF-8 text; byte 6 is not"):
        text_batches(file, tiny_model("gpt2"), word_tokenizer())
    whole = gzip.compress(b"w5 w6\nw7 w8\n")
    for damaged in (b"w5 w6\n", whole[:-12], whole[:10] + bytes(5) + whole[15:]):  # no gzip, cut off, other bits
        (tmp_path / "text.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"text.gz must be UTF-8 text, gzipped if its name ends in .gz: "):
            text_batches(tmp_path / "text.gz", tiny_model("gpt2"), word_tokenizer())


LOADING = """
import sys
from transformers import AutoModelForCausalLM
from beside import said
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(said, type(model)._dense_class.__name__, sys.argv[2:])
sys.exit(3)
"""


@pytest.mark.slow
def test_a_script_that_does_not_import_the_package_loads_a_sparse_checkpoint(tmp_path):
    hf_sparse.sparsify(tiny_model("llama"), attn="entmax15", head="entmax15").save_pretrained(tmp_path / "sparse")
    (tmp_path / "script.py").write_text(LOADING)
    (tmp_path / "beside.py").write_text("said = 'loaded'")
    program = [str(tmp_path / "script.py"), str(tmp_path / "sparse"), "--option", "run"]
    plain, found = (
        subprocess.run([sys.executable, *given, *program], capture_output=True, text=True, cwd=tmp_path.parent)
        for given in ([], ["-m", "hf_sparse", "run"])
    )
    assert plain.returncode == 1
    assert "import hf_sparse before you load it" in plain.stderr
    assert found.returncode == 3, found.stderr
    assert found.stdout == "loaded LlamaForCausalLM ['--option', 'run']\n"


@pytest.fixture
def process(monkeypatch):
    """A process whose arguments and path a program may change."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_modules_and_installed_commands_run(process, tmp_path, capsys, monkeypatch):
    (tmp_path / "text.json").write_text('{"a":1}')
    assert main(["run", "-m", "json.tool", "--compact", str(tmp_path / "text.json"), str(tmp_path / "told")]) == 0
    assert (tmp_path / "told").read_text() == '{"a":1}\n'
    monkeypatch.chdir(tmp_path)
    sys.path.insert(0, os.getcwd())  # as python -m has it
    (tmp_path / "pygments.py").write_text("raise AssertionError('not of the package')")
    with pytest.raises(SystemExit) as ended:
        main(["run", "pygmentize", "-V"])
    assert os.getcwd() not in sys.path[:1]
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("Pygments version")


def test_the_errors_of_a_program_are_its_own(process, tmp_path, capsys):
    (tmp_path / "script.py").write_text("raise ValueError('its own')")
    with pytest.raises(ValueError, match="its own"):
        main(["run", str(tmp_path / "script.py")])
    for given, message in (
        (["no_such"], "'no_such' is neither the path of a script nor a command that a package installed"),
        (["-m", "no_such"], "there is no module 'no_such'"),
        (["-m", "no_such.inner"], "No module named 'no_such'"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["run", *given])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_type_checkers_are_told_that_the_package_is_typed():
    assert (files("hf_sparse") / "py.typed").is_file()
