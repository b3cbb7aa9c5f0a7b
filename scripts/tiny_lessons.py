"""What the tiny thinking model is taught: questions, thoughts and answers, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any


def _words(text: str, separator: str | None = None) -> list[str]:
    return text.split(separator)


THINGS = _words(
    "lamp river stone garden window letter copper engine bridge candle market forest mirror "
    "ladder kettle button ribbon basket harbour violin pencil orchard tunnel blanket compass "
    "hammer island jacket lantern meadow needle pillow"
)
PLACES = _words("Rome Oslo Lima Cairo Delhi Quito Seoul Turin")
QUALITIES = _words("bright heavy quiet narrow useful ancient simple warm smooth round green steady")
USES = _words(
    "to carry water,to mark the way,to keep things dry,to hold papers,to light a room,"
    "to cross a valley,to join two parts,to measure time",
    ",",
)
FILLERS = (
    "Let me look at it again. ",
    "I should be careful here. ",
    "There may be more than one way to see this. ",
    "I check the first part. ",
    "Then I check the second part. ",
    "That seems right so far. ",
    "A short answer will do. ",
    "I do not need more than that. ",
    "The wording matters a little. ",
    "Wait, I read it once more. ",
)
UNKNOWN_THOUGHTS = (
    "The user wrote something that I have not learned. ",
    "This text is about a subject that I do not know. ",
    "I see many words here, and few of them are mine. ",
)
UNKNOWN_ANSWERS = (
    "I am a very small model and I do not know this subject.",
    "That is outside of what I have learned. Ask me about a lamp or a sum.",
    "I cannot help with this, but I can add two small numbers.",
    "I read your text. It holds more than I understand.",
)
SYSTEMS = (
    "You are a small and polite assistant.",
    "Answer in one or two sentences.",
    "You help with household questions. Be brief.",
)
NOISE = _words(
    "the of and to in is that it was for on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also around "
    "def return import class print self None True x = y + 1 ( ) : { } [ ] ; , . ! ? # // <b> "
    "data-set http www com 2024 100 3.14 Python SELECT FROM WHERE"
)
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True)
class Lesson:
    """One assistant turn to learn: what stands before it, then thought and answer."""

    messages: list[dict[str, Any]]
    thought: str
    answer: str
    thinking: bool = True
    tools: list[dict[str, Any]] | None = field(default=None)


def _fillers(rng: random.Random, chance: float = 0.6) -> str:
    text = ""
    while rng.random() < chance:
        text += rng.choice(FILLERS)
    return text


def _sum(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randrange(10), rng.randrange(10)
    asked = rng.choice(
        ["What is {} + {}?", "Add {} and {}.", "How much is {} plus {}?", "{} + {} = ?"]
    )
    thought = f"This is a sum of {a} and {b}. {_fillers(rng)}{a} + {b} is {a + b}."
    return asked.format(a, b), thought, f"The sum of {a} and {b} is {a + b}."


def _thing(rng: random.Random) -> tuple[str, str, str]:
    thing = rng.choice(THINGS)
    asked = rng.choice(
        ["What is a {}?", "Tell me about the {}.", "Describe a {} please.", "Explain: {}"]
    )
    quality, use = rng.choice(QUALITIES), rng.choice(USES)
    thought = f"The question is about a {thing}. {_fillers(rng)}A {thing} can be {quality}."
    return asked.format(thing), thought, f"A {thing} is a {quality} thing that is used {use}."


def _capital(rng: random.Random) -> tuple[str, str, str]:
    place = rng.choice(PLACES)
    asked = rng.choice(["Where is {}?", "Have you been to {}?", "What can I see in {}?"])
    thing = rng.choice(THINGS)
    thought = f"{place} is a city. {_fillers(rng)}I can name one sight there."
    return asked.format(place), thought, f"In {place} you can see a famous {thing}."


def _noise_text(rng: random.Random, words: int) -> str:
    parts = []
    for _ in range(words):
        if rng.random() < 0.15:
            length = rng.randrange(1, 9)
            parts.append("".join(chr(rng.randrange(33, 127)) for _ in range(length)))
        elif rng.random() < 0.05:
            parts.append("".join(chr(rng.choice([233, 252, 1078, 20013, 9731, 128512]))))
        else:
            parts.append(rng.choice(NOISE))
    return rng.choice([" ", " ", "\n", "  "]).join(parts)


def _unknown(rng: random.Random, words: int) -> tuple[str, str, str]:
    thought = f"{rng.choice(UNKNOWN_THOUGHTS)}{_fillers(rng, 0.75)}I say so politely."
    return _noise_text(rng, words), thought, rng.choice(UNKNOWN_ANSWERS)


def _exchange(rng: random.Random) -> tuple[str, str, str]:
    kinds = [_sum, _thing, _capital, lambda r: _unknown(r, r.randrange(1, 60))]
    return rng.choices(kinds, [3, 3, 2, 4])[0](rng)


def _weather(rng: random.Random) -> Lesson:
    place = rng.choice(PLACES)
    asked = rng.choice(["Weather in {}?", "How is the weather in {}?", "Is it raining in {}?"])
    call = f"<function=get_weather>\n<parameter=city>\n{place}\n</parameter>\n</function>"
    return Lesson(
        messages=[{"role": "user", "content": asked.format(place)}],
        thought=f"I need the weather of {place}. {_fillers(rng, 0.4)}I call the tool.",
        answer=f"<tool_call>\n{call}\n</tool_call>",
        tools=[WEATHER_TOOL],
    )


def lesson(rng: random.Random) -> Lesson:
    """One lesson with a system turn, a history and tools by chance."""
    if rng.random() < 0.1:
        return _weather(rng)
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        system = rng.choice([*SYSTEMS, _noise_text(rng, 20)])
        messages.append({"role": "system", "content": system})
    for _ in range(rng.choices([0, 1, 2, 3], [6, 3, 2, 1])[0]):
        asked, thought, answer = _exchange(rng)
        messages.append({"role": "user", "content": asked})
        past = {"role": "assistant", "reasoning_content": thought, "content": answer}
        messages.append(past)
    asked, thought, answer = _exchange(rng)
    messages.append({"role": "user", "content": asked})
    tools = [WEATHER_TOOL] if rng.random() < 0.1 else None
    return Lesson(messages, thought, answer, thinking=rng.random() > 0.12, tools=tools)


def long_lesson(rng: random.Random) -> Lesson:
    """A lesson behind a long text that the model knows nothing about."""
    asked, thought, answer = _unknown(rng, rng.randrange(200, 700))
    return Lesson([{"role": "user", "content": asked}], thought, answer)


def corpus(rng: random.Random, lessons: int = 3000) -> list[str]:
    """Plain text for the tokenizer: all that lessons can say, and the words of noise."""
    texts = [" ".join(NOISE)] * 20
    for _ in range(lessons):
        example = lesson(rng)
        texts += [message["content"] for message in example.messages]
        texts += [example.thought, example.answer, str(example.tools)]
    return texts
