"""Recipes: a model, its data and its training in one TOML file, so that a run can be repeated.

    from models import recipes

    recipe = recipes.read("default", {"data.novels.path": "novels", "model.n_layers": 1})
    recipe.train(Path("trained"))

A recipe has these tables; paths are relative to the file. `interp train FILE --set KEY=VALUE` puts one value in place
of another: KEY is `model.n_layers`, `phases.0.steps`, or `phases.*.mix.repeats` for every phase, VALUE is TOML or plain
text, and paths are relative to where the command is typed.

    [model]             kind = "decoder", "encoder" (it learns hidden words) or "encoder-decoder"; fields of StackConfig
                        and TransformerConfig by their names; a part by the name of its kind ("Rotary") or as a table
                        ({ kind = "Rotary", base = 5000.0 }). d_head is d_model / n_heads where it is absent, and
                        d_vocab the tokenizer's. initial = "normal", "unit" or "glorot", as models.initialisation says.
                        start = "default" in place of all this goes on with a model that was trained, a directory or as
                        `models.load` takes it; it has its own tokenizer, so there is no [tokenizer] then
    [model.encoder]     what differs from [model] in one of two stacks; [model.decoder] likewise
    [tokenizer]         d_vocab = 4096 (byte-level BPE of the training text), file = "tokenizer.json", or
                        level = "characters" or "words"; texts = [ NAME, ... ], the sources that it is made of
    [target_tokenizer]  the same for what a decoder writes for an encoder, where it differs
    [data.NAME]         kind = "text": path, one or a list of files and folders; unwrap; held_out = 0.1
                        kind = "generated": name = "stories", "portraits" or "tales"; count; seed = 1000; held_out = 0
                        kind = "repeats": shortest = 6; longest = 40
                        kind = "pairs": path of a file of two columns, or name = "dates" with count = 20000 and
                        seed = 1000; held_out = 0.1
    [training]          fields of interp.Plan; hidden = 0.15, the share of hidden words that an encoder learns
    [[phases]]          fields of interp.Phase: steps, rows, row, mix = { NAME = 0.6, ... }; learning_rate where the
                        schedule begins anew
"""

from models.recipes.recipe import Recipe, Trained
from models.recipes.recipe_reader import named, read
from models.recipes.toml_tables import assignment, shipped

__all__ = ["Recipe", "Trained", "assignment", "named", "read", "shipped"]
__dir__ = __all__.copy  # `dir()` gives what a user may call
