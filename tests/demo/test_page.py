"""The page needs Gradio, and says so."""

import sys

import pytest

from hf_sparse.__main__ import main
from hf_sparse.demo import Playground, demo_page, launch_demo
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer


def test_without_gradio_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    playground = Playground(tiny_model("llama"), word_tokenizer())
    for make in (demo_page, launch_demo):
        with pytest.raises(ImportError, match=r"the page needs Gradio: pip install 'hf_sparse\[demo\]'"):
            make(playground)


@pytest.mark.parametrize("port", [-5, 0, 65536])
def test_ports_that_no_machine_has_are_refused(port):
    with pytest.raises(ValueError, match=f"port must be from 1 to 65535, or None, was {port}"):
        launch_demo(Playground(tiny_model("llama"), word_tokenizer()), port=port)


def test_the_command_ends_with_that_message(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    tiny_model("llama").save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--model", str(tmp_path)])
    assert stopped.value.code == 2
    assert "pip install 'hf_sparse[demo]'" in capsys.readouterr().err
