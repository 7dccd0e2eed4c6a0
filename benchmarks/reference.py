"""Does a head that carries `reference` know whom the verb means, or does it copy whomever it attends to?

    python -m benchmarks.reference [MODEL] [--pairs 200]

The task swaps two people around one verb. Two variants test the rest. `no cue` has verbs without a cue ("followed"),
and counts the object's trade as right. `verb alone` keeps the people in place and swaps in a verb that means the other
person. Prints one JSON line per task: the model's accuracy, and every head whose replaced output flips an answer. Each
head has its number of flips on the reporting half, and its share of the logit difference.

The textbook model picks the object in 98% of the prompts of `no cue`, and L1.H0 still flips 98 of 100. With `verb
alone` L1.H0 flips 100 of 100, and so does L0.H0. So L1.H0 follows the verb's cue if there is one, else the object.
"""

import random
from typing import Any

from analyses.coreference import TASKS
from analyses.tasks.causal_tests import PAIRS, patch_heads
from analyses.wording.head_names import head_name
from benchmarks.console import arguments, show
from models import load
from models.stories.writer import OF_OBJECT, OF_SUBJECT

VERBS = ("followed", "watched", "saw", "called", "heard", "joined", "found", "helped", "knew", "chased")
_prompt: Any = TASKS["reference"].keywords["prompt"]


def no_cue(number: int, people: Any, rng: random.Random) -> Any:
    """A pair whose verb gives no cue."""
    pair, verb = _prompt(number, people, rng), rng.choice(VERBS)
    clean, corrupt = (text.replace(pair.frame, verb) for text in (pair.clean, pair.corrupt))
    right, wrong = (pair.right, pair.wrong) if pair.frame in OF_OBJECT else (pair.wrong, pair.right)
    return pair._replace(clean=clean, corrupt=corrupt, right=right, wrong=wrong, frame=verb)


def verb_alone(number: int, people: Any, rng: random.Random) -> Any:
    """A pair in which only the verbs differ."""
    pair = _prompt(number, people, rng)
    verb = rng.choice(OF_SUBJECT if pair.frame in OF_OBJECT else OF_OBJECT)
    return pair._replace(corrupt=pair.clean.replace(pair.frame, verb))


def main() -> None:
    """Print flips for each kind of pair, by head."""
    parser = arguments(__doc__)
    parser.add_argument("model", nargs="?", default="textbook")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    model = load(options.model)
    for name, prompt in {"reference": _prompt, "no cue": no_cue, "verb alone": verb_alone}.items():
        pairs = TASKS["reference"](model, options.pairs, 0, name, "", prompt=prompt)
        effects = patch_heads(model, "coreference", [pairs])
        (task,), table = effects.tasks, effects.table.query("intervention == 'noise' and flips > 0")
        flips = {
            head_name(row["layer"], row["head"]): [int(row["flips"]), row["n"], round(row["effect"], 3)]
            for row in table.to_dict("records")
        }
        show(task=name, accuracy=task["accuracy"], refused=task["refused"], flips=flips)


if __name__ == "__main__":
    main()
