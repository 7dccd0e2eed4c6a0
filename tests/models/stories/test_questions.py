"""What sentences ask: the word that stands there may come, the others may not, and attractors are what they say."""

import pytest

from models.stories import new_sentences, sentences
from models.stories.questions import questions


def asked_of(generator, count, seed):
    return [question for text in generator(count, seed) for question in questions(text)]


def test_known_sentences():
    by_prompt = {each.prompt: each for generator in (sentences, new_sentences) for each in asked_of(generator, 4, 1)}
    assert all(
        each.prompt[slice(*each.decides)] == "lawyer"
        for each in by_prompt.values()
        if each.right == "herself" and "lawyer" in each.prompt
    )
    told = {prompt: (each.kind, each.right, each.wrong, each.attractor) for prompt, each in by_prompt.items()}
    clause = "Behind the church the lawyer that the queens"
    assert told[clause] == ("agreement", "follow", ("follows",), False)
    assert told[f"{clause} follow still"] == ("agreement", "sees", ("see",), True)
    assert told[f"{clause} follow still sees"] == ("reflexive", "herself", ("themselves",), True)
    two = "By the churches the poet near the trees and the pilot"
    assert told[two] == ("agreement", "help", ("helps",), True)
    sailor = "By the benches, the sailor admired the teacher because he"
    assert told[sailor] == ("reference", "taught", ("sailed",), False)
    tailor = "The tailor amazed the runner because her"
    assert told[tailor] == ("reference", "coat", ("pace",), True)
    assert not any(prompt.startswith("The clown pleased") for prompt in told)  # a clown has no trade


@pytest.mark.parametrize("generator", [sentences, new_sentences])
def test_what_is_right_stands_there(generator):
    kinds = {"agreement": 0, "reflexive": 0, "reference": 0}
    over = dict(kinds)
    for text in generator(40, 3):
        nouns = {form.lower() for form, tag in zip(text.words, text.tags, strict=True) if tag == "NOUN"}
        for question in questions(text):
            assert text.words[question.word] == question.right
            assert question.right not in question.wrong
            assert text.text[: text.word_spans[question.word][0]].rstrip().endswith(question.prompt)
            begin, end = question.decides
            assert question.prompt[begin:end].lower() in nouns
            kinds[question.kind] += 1
            over[question.kind] += question.attractor
    assert min(kinds.values()) > 20
    assert all(0.15 * kinds[kind] < over[kind] < 0.85 * kinds[kind] for kind in kinds)
