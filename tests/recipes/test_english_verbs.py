"""The English verbs: their forms, their number, and that they are those of the committed figures."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.data import english_verbs as program

README = Path(program.__file__).with_name("README.md")
SHA256 = "3d07ea1f4001830fb58c80e936220c74b2583b98e3b94049de81a7139d46d26a"

TAGS = ["V;NFIN", "V;3;SG;PRS", "V;V.PTCP;PRS", "V;PST", "V;V.PTCP;PST"]

TRICKY = """
    agree agrees agreeing agreed agreed
    argue argues arguing argued argued
    begin begins beginning began begun
    benefit benefits benefiting benefited benefited
    broadcast broadcasts broadcasting broadcast broadcast
    canoe canoes canoeing canoed canoed
    die dies dying died died
    do does doing did done
    draw draws drawing drew drawn
    dye dyes dyeing dyed dyed
    echo echoes echoing echoed echoed
    equip equips equipping equipped equipped
    fix fixes fixing fixed fixed
    flow flows flowing flowed flowed
    fly flies flying flew flown
    focus focuses focusing focused focused
    forget forgets forgetting forgot forgotten
    found founds founding founded founded
    gas gasses gassing gassed gassed
    go goes going went gone
    hamstring hamstrings hamstringing hamstrung hamstrung
    have has having had had
    lay lays laying laid laid
    lie lies lying lay lain
    mistake mistakes mistaking mistook mistaken
    obey obeys obeying obeyed obeyed
    offer offers offering offered offered
    overcome overcomes overcoming overcame overcome
    panic panics panicking panicked panicked
    play plays playing played played
    queue queues queuing queued queued
    quit quits quitting quit quit
    quiz quizzes quizzing quizzed quizzed
    radio radios radioing radioed radioed
    regret regrets regretting regretted regretted
    relay relays relaying relayed relayed
    rewrite rewrites rewriting rewrote rewritten
    run runs running ran run
    singe singes singeing singed singed
    ski skis skiing skied skied
    stomach stomachs stomaching stomached stomached
    stop stops stopping stopped stopped
    sync syncs syncing synced synced
    taxi taxis taxiing taxied taxied
    travel travels traveling traveled traveled
    try tries trying tried tried
    undergo undergoes undergoing underwent undergone
    underlie underlies underlying underlay underlain
    visit visits visiting visited visited
    watch watches watching watched watched
    welcome welcomes welcoming welcomed welcomed
    withdraw withdraws withdrawing withdrew withdrawn
"""


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str, str]]:
    """Return lemma, form and tags of every form."""
    return program.rows()


@pytest.fixture(scope="module")
def paradigms(rows: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Return the five forms of each lemma."""
    return {rows[i][0]: [form for _, form, _ in rows[i : i + 5]] for i in range(0, len(rows), 5)}


def test_the_table_is_that_of_the_committed_figures():
    command = [sys.executable, "-m", "recipes.data.english_verbs"]
    printed = subprocess.run(command, cwd=README.parents[2], check=True, timeout=60, capture_output=True).stdout
    assert hashlib.sha256(printed.replace(b"\r\n", b"\n")).hexdigest() == SHA256


def test_every_lemma_has_the_five_cells_in_order(rows):
    assert len(rows) % 5 == 0
    for i in range(0, len(rows), 5):
        lemmas, forms, tags = zip(*rows[i : i + 5], strict=True)
        assert len(set(lemmas)) == 1
        assert list(tags) == TAGS
        assert forms[0] == lemmas[0]


def test_lemmas_are_many_sorted_and_distinct(rows):
    lemmas = [lemma for lemma, _, _ in rows[::5]]
    assert len(lemmas) >= 1000
    assert lemmas == sorted(set(lemmas))


def test_forms_are_lowercase_ascii(rows):
    assert [row for row in rows if not all(re.fullmatch("[a-z]+", cell) for cell in row[:2])] == []


def test_irregular_verbs_are_many_and_irregular(paradigms):
    regular = {lemma for lemma, forms in paradigms.items() if {program.regular_past(lemma)} == set(forms[3:])}
    irregular = set(paradigms) - regular
    assert len(irregular) >= 150
    assert irregular == {forms[0] for forms in program.irregular_verbs()}
    assert "draw" in irregular


@pytest.mark.parametrize("forms", [line.split() for line in TRICKY.strip().splitlines()], ids=lambda f: f[0])
def test_tricky_verbs(paradigms, forms):
    assert paradigms[forms[0]] == forms


def test_a_verb_listed_twice_is_refused(monkeypatch):
    monkeypatch.setattr(program, "REGULAR", program.REGULAR + " draw")
    with pytest.raises(ValueError, match="listed twice: draw"):
        program.all_verbs()


def test_readme_gives_the_counts(rows):
    readme = README.read_text(encoding="utf-8")
    for count in (len(rows) // 5, len(program.irregular_verbs()), len(rows)):
        assert re.search(rf"\b{count:,}\b", readme)
