"""Parallel text: the embedded scenes, tab-separated files, line files, or a data set; and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import datasets
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hf_sparse.conversion.text_file import read_lines

from ..data import scenes

SPECIAL = ("<pad>", "</s>", "<unk>")
# Puts Chinese characters apart, and changes nothing else.
APART = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)
# The test sets of Multi30k among them; the first that is there is taken where none is named.
TESTS = ("test", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
USUAL = ("de", "en")  # languages of the settings where none are given
LANGUAGES = {"de": "German", "en": "English", "fr": "French"}
SPLITS = {"train": ("train",), "dev": ("dev", "val", "valid", "validation"), "test": TESTS}


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Corpus(NamedTuple):
    """Three disjoint parts of a parallel corpus."""

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]


def read_table(path: Path) -> list[Pair]:
    """Read lines ``source TAB target``, UTF-8, plain or gzip, no header; empty lines are skipped.

    Raises:
        ValueError: the file is no such table; the message names the line.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        fields = [field.strip() for field in line.split("\t")]
        if not line.strip():
            continue
        if len(fields) != 2 or not all(fields):
            raise ValueError(f"{path}, line {number}: expected two fields, source TAB target, was {line!r}")
        pairs.append(Pair(*fields))
    if not pairs:
        raise ValueError(f"{path}: no rows; expected lines of source TAB target")
    return pairs


def splits(test: str = "") -> dict[str, tuple[str, ...]]:
    """The names that each part of a corpus may have.

    Args:
        test: the name of the test part; empty for the first of ``TESTS``.
    """
    return SPLITS | {"test": (test,)} if test else SPLITS


def read_folder(folder: Path, source: str, target: str, test: str = "") -> Corpus:
    """Read files aligned by line, ``train.de`` beside ``train.en`` and so on, plain or ``.gz``.

    Args:
        folder: with files for training, development (``dev``, ``val``, ``valid`` or ``validation``) and test
            (``test``, or one of Multi30k's, ``test_2016_flickr`` before the later ones).
        source: suffix of the source language.
        target: suffix of the target language.
        test: see ``splits``.

    Raises:
        ValueError: a part is missing, or its two files differ in length.
    """
    parts = []
    for split, names in splits(test).items():
        files = _aligned(folder, names, source, target)
        if files is None:
            tried = ", ".join(f"{name}.{source}[.gz]" for name in names)
            raise ValueError(f"{folder}: no files for {split}; looked for {tried} and the same with .{target}")
        sources, targets = map(read_lines, files)
        if len(sources) != len(targets):
            raise ValueError(f"{files[0].name} has {len(sources)} lines, {files[1].name} {len(targets)}")
        pairs = [Pair(a.strip(), b.strip()) for a, b in zip(sources, targets)]
        parts.append([pair for pair in pairs if all(pair)])
    return Corpus(*parts)


def _aligned(folder: Path, names: Sequence[str], source: str, target: str) -> tuple[Path, Path] | None:
    for name in names:
        for suffix in ("", ".gz"):
            files = folder / f"{name}.{source}{suffix}", folder / f"{name}.{target}{suffix}"
            if all(file.is_file() for file in files):
                return files
    return None


def read_tables(folder: Path, test: str = "") -> Corpus:
    """Read ``train.tsv``, ``dev.tsv`` and ``test.tsv``, plain or ``.gz``, each as ``read_table`` does.

    Args:
        folder: with a table each for training, development and test, named as in ``read_folder``.
        test: see ``splits``.

    Raises:
        ValueError: a part is missing; see also ``read_table``.
    """
    parts = []
    for split, names in splits(test).items():
        tables = [folder / f"{name}.tsv{suffix}" for name in names for suffix in ("", ".gz")]
        table = next((table for table in tables if table.is_file()), None)
        if table is None:
            tried = ", ".join(f"{name}.tsv[.gz]" for name in names)
            raise ValueError(f"{folder}: no table for {split}; looked for {tried}")
        parts.append(read_table(table))
    return Corpus(*parts)


def read_dataset(path: str, source: str, target: str, test: str = "") -> Corpus:
    """Read a data set with ``datasets.load_dataset``: a column ``translation``, or one column per language.

    Args:
        path: its name on the Hub, or a folder.
        source: source language.
        target: target language.
        test: see ``splits``.

    Raises:
        ValueError: a split or a column is missing.
    """
    loaded = datasets.load_dataset(path)
    parts = []
    for split, names in splits(test).items():
        name = next((name for name in names if name in loaded), None)
        if name is None:
            raise ValueError(
                f"{path}: no split for {split}; it has {', '.join(loaded)}, needs one of {', '.join(names)}"
            )
        rows = loaded[name]
        if "translation" in rows.column_names:
            rows = rows["translation"]
        elif not {source, target} <= set(rows.column_names):
            raise ValueError(
                f"{path}: needs a column 'translation' or columns {source!r} and {target!r}; has {rows.column_names}"
            )
        parts.append([Pair(row[source].strip(), row[target].strip()) for row in rows])
    return Corpus(*parts)


def divided(pairs: Sequence[Pair]) -> Corpus:
    """Split one list: of every ten different sources one goes to development and one to test, with all its rows."""
    parts: tuple[list[Pair], ...] = ([], [], [])
    numbers: dict[str, int] = {}
    for pair in pairs:
        number = numbers.setdefault(pair.source, len(numbers))
        parts[{3: 1, 7: 2}.get(number % 10, 0)].append(pair)
    return Corpus(*parts)


def read_scenes() -> Corpus:
    """The scenes of ``recipes.data``, German to English."""
    return divided([Pair(*pair) for pair in scenes.pairs()])


def _read(data: str, source: str, target: str, test: str) -> Corpus:
    path = Path(data)
    if test and (not data or path.is_file()):
        raise ValueError(f"test={test!r} names a part of a folder or data set; {data or 'the sample'} is divided here")
    if not data:
        return read_scenes()
    if path.is_file():
        return divided(read_table(path))
    if any(path.glob("train.tsv*")):
        return read_tables(path, test)
    if any(file for names in (f"train.{source}*", "train.??", "train.??.gz") for file in path.glob(names)):
        return read_folder(path, source, target, test)
    return read_dataset(data, source, target, test)


def read_named(data: str, source: str, target: str, test: str = "") -> Corpus:
    """Corpus named on the command line.

    Args:
        data: a table (see ``read_table``), which is divided here; a folder of aligned files or of three tables;
            anything else that ``datasets.load_dataset`` takes; or empty for the embedded scenes.
        source: source language, for a folder or a data set.
        target: target language.
        test: see ``splits``.

    Raises:
        ValueError: a part has no pair; see also ``read_table``, ``read_folder``, ``read_tables``, ``read_dataset``.
    """
    corpus = _read(data, source, target, test)
    for name, part in zip(Corpus._fields, corpus):
        if not part:
            counts = ", ".join(f"{len(part)} {name}" for name, part in zip(Corpus._fields, corpus))
            raise ValueError(f"{data}: no pairs for {name} ({counts}); a table that is divided needs 8 sources")
    return corpus


def sides(data: str, source: str, target: str) -> tuple[str, str]:
    """What a card calls the sides of a corpus: its languages, or source and target of a table of which none was told.

    Args:
        data: see ``read_named``.
        source: source language.
        target: target language.
    """
    path = Path(data)
    is_table = bool(data) and (path.is_file() or any(path.glob("train.tsv*")))
    if is_table and (source, target) == USUAL:
        return "source", "target"
    return LANGUAGES.get(source, source), LANGUAGES.get(target, target)


def name_of_test(data: str, source: str, target: str, test: str = "") -> str:
    """Name of the test set, where one is named or is read from a folder of aligned files; empty for other data."""
    path = Path(data)
    if test:
        return test
    if not path.is_dir() or any(path.glob("train.tsv*")):
        return ""
    return next((name for name in TESTS if _aligned(path, [name], source, target)), "")


def build_tokenizer(pairs: Sequence[Pair], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-pair encoding (Sennrich et al. 2016) learned on both languages together; ``</s>`` ends every text.

    Args:
        pairs: to learn the merges from.
        vocabulary: largest number of tokens.
    """
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=2, special_tokens=list(SPECIAL), show_progress=False
    )
    backend.train_from_iterator((text for pair in pairs for text in pair), trainer)
    end = backend.token_to_id("</s>")
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", end)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def words(text: str) -> list[str]:
    """Lower-cased words, punctuation marks and Chinese characters, the units of REP, DROP and the word aligner."""
    pieces = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(APART.normalize_str(text.lower()))
    return [piece for piece, _ in pieces]
