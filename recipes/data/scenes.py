"""Scenes: short German sentences about everyday life, with their English translations.

    python -m recipes.data.scenes > scenes.tsv

writes the table. Everything is written out below: a sentence puts a subject, what it does, and where or when, in
German and English word order (German moves the verb to second place when the sentence begins with a place, and splits
separable verbs). Combinations are drawn with a fixed seed.
"""

from __future__ import annotations

import random
from functools import lru_cache

ROWS = 3000
SEED = 2018

# German nominative, English; a plural subject is marked with an asterisk.
PEOPLE = """
    der Mann | the man
    die Frau | the woman
    das Kind | the child
    der Lehrer | the teacher
    die Lehrerin | the teacher
    der Bäcker | the baker
    die Ärztin | the doctor
    der Nachbar | the neighbor
    die Großmutter | the grandmother
    der Fahrer | the driver
    das Mädchen | the girl
    der Junge | the boy
    die Verkäuferin | the saleswoman
    der Gärtner | the gardener
    * die Kinder | the children
    * die Arbeiter | the workers
    * die Freunde | the friends
    * die Touristen | the tourists
    * die Brüder | the brothers
    * die Musiker | the musicians
"""
# Adjective before a nominative noun with definite article: singular ending -e, plural -en.
ADJECTIVES = """
    alt | old
    jung | young
    müd | tired
    freundlich | friendly
    klein | little
    fröhlich | cheerful
    neu | new
"""
# Third person singular, plural, separated particle or "-"; English singular, plural.
TRANSITIVE = """
    sieht | sehen | - | sees | see
    kauft | kaufen | - | buys | buy
    trägt | tragen | - | carries | carry
    sucht | suchen | - | looks for | look for
    malt | malen | - | paints | paint
    holt | holen | ab | picks up | pick up
    räumt | räumen | auf | tidies up | tidy up
    macht | machen | auf | opens | open
    wäscht | waschen | - | washes | wash
    findet | finden | - | finds | find
    bringt | bringen | mit | brings along | bring along
    wirft | werfen | weg | throws away | throw away
"""
INTRANSITIVE = """
    schläft | schlafen | - | sleeps | sleep
    singt | singen | - | sings | sing
    wartet | warten | - | waits | wait
    arbeitet | arbeiten | - | works | work
    lacht | lachen | - | laughs | laugh
    steht | stehen | auf | gets up | get up
    ruht | ruhen | sich aus | rests | rest
    tanzt | tanzen | - | dances | dance
    spielt | spielen | - | plays | play
"""
# German accusative, English.
THINGS = """
    den Ball | the ball
    den Apfel | the apple
    das Brot | the bread
    das Fahrrad | the bicycle
    die Tasche | the bag
    die Fensterscheibe | the window pane
    den Regenschirm | the umbrella
    das Wörterbuch | the dictionary
    die Blumen | the flowers
    die Schlüssel | the keys
    den Koffer | the suitcase
    das Krankenhausbett | the hospital bed
    die Handschuhe | the gloves
    einen Brief | a letter
    eine Zeitung | a newspaper
    ein Geschenk | a present
    den Kinderwagen | the stroller
    das Geschirr | the dishes
"""
PLACES = """
    im Garten | in the garden
    auf dem Markt | at the market
    vor dem Bahnhof | in front of the train station
    in der Küche | in the kitchen
    am Strand | on the beach
    hinter dem Haus | behind the house
    in der Schule | at school
    unter der Brücke | under the bridge
    neben dem Brunnen | next to the fountain
    auf der Straße | on the street
    zu Hause | at home
"""
TIMES = """
    heute | today
    am Morgen | in the morning
    jeden Abend | every evening
    am Wochenende | on the weekend
    nach der Arbeit | after work
    um drei Uhr | at three o'clock
    immer wieder | again and again
    jetzt | now
"""


@lru_cache
def entries(text: str) -> list[tuple[str, ...]]:
    """The lines of a list, each split at its bars."""
    return [tuple(part.strip() for part in line.split("|")) for line in text.strip().splitlines()]


def subject(chance: random.Random) -> tuple[str, str, bool]:
    """A German and an English subject, and whether it is plural."""
    german, english = chance.choice(entries(PEOPLE))
    plural = german.startswith("* ")
    german = german.removeprefix("* ")
    if chance.random() < 0.4:
        adjective, meaning = chance.choice(entries(ADJECTIVES))
        article, noun = german.split(" ", 1)
        german = f"{article} {adjective}{'en' if plural else 'e'} {noun}"
        english = english.replace("the ", f"the {meaning} ", 1)
    return german, english, plural


def clause(chance: random.Random) -> tuple[str, str]:
    """A sentence without its capital and its full stop."""
    german, english, plural = subject(chance)
    takes_object = chance.random() < 0.65
    verb = chance.choice(entries(TRANSITIVE if takes_object else INTRANSITIVE))
    reflexive = "sich " if verb[2].startswith("sich ") else ""
    finite, particle = verb[1 if plural else 0], verb[2].removeprefix("sich ").removeprefix("-")
    did = verb[4 if plural else 3]
    thing, object_ = chance.choice(entries(THINGS)) if takes_object else ("", "")
    if takes_object and chance.random() < 0.2:
        second, other = chance.choice([entry for entry in entries(THINGS) if entry[0] != thing])
        thing, object_ = f"{thing} und {second}", f"{object_} and {other}"
    adverb, when = chance.choice(entries(PLACES) + entries(TIMES))
    if chance.random() < 0.4:  # the adverb first, then the verb, then the subject
        middle = [adverb, finite, german, reflexive.strip(), thing, particle]
        words = [when + ",", english, did, object_]
    else:
        middle = [german, finite, reflexive.strip(), thing, adverb, particle]
        words = [english, did, object_, when]
    return " ".join(filter(None, middle)), " ".join(filter(None, words))


def sentence(chance: random.Random) -> tuple[str, str]:
    """A German sentence and its translation."""
    german, english = clause(chance)
    if chance.random() < 0.25:
        more = clause(chance)
        german, english = f"{german}, und {more[0]}", f"{english}, and {more[1]}"
    return german[0].upper() + german[1:] + ".", english[0].upper() + english[1:] + "."


@lru_cache(maxsize=1)
def pairs() -> list[tuple[str, str]]:
    """All sentences, German and English; no German one occurs twice."""
    chance = random.Random(SEED)
    found: dict[str, str] = {}
    while len(found) < ROWS:
        german, english = sentence(chance)
        found.setdefault(german, english)
    return list(found.items())


if __name__ == "__main__":
    for pair in pairs():
        print(*pair, sep="\t")
