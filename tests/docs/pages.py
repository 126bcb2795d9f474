"""The pages with examples: those that `make test` runs, and those that need the packages of `make test-more`."""

import doctest
import os
import re
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
_OTHERS = re.compile(r"^>>> (from|import) (lm_eval|onnx\w*|sentence_transformers|trl)\b", re.MULTILINE)


def pages(*, others):
    """README and docs that have examples, with (``others``) or without packages of the extra ``more``."""
    texts = {page: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
    return [page for page, text in texts.items() if ">>> " in text and bool(_OTHERS.search(text)) == others]


def check(page):
    with patch.dict(os.environ, DS_ACCELERATOR="cpu"):  # DeepSpeed, where it is installed, prints what it finds
        result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 7
    assert result.failed == 0


def scripts(page):
    """Blocks of Python on a page that are whole scripts and no sessions."""
    return re.findall(r"^```python\n(?!>>> )(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
