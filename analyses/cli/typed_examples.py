"""What does one type? The examples below each command's help; a test reads every one as the command would."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "report": (
        "interp report",
        "interp report --model lens:ORG/NAME --corpus treebank.conllu --corpus chains.conll --out named",
        "interp report --model DIRECTORY --corpus text:novel.txt --no-probes",
    ),
    "over-training": ("interp over-training trained",),
    "view": (
        "interp view 'The old lady shook her head, because she was tired.'",
        "interp view 'An apple fell.' --model DIRECTORY --head L2.H5 --out apple.html",
        "interp view cat --target 'K AE' --model DIRECTORY --head cross.L1.H0",
    ),
    "position": (
        "interp position --model DIRECTORY --corpus tales:50",
        "interp position --labels --corpus text:novel.txt",
    ),
    "part-of-speech": (
        "interp part-of-speech --corpus treebank.conllu",
        "interp part-of-speech --model minilm --labels --corpus treebank.conllu",
    ),
    "coreference": (
        "interp coreference --corpus litbank:FOLDER",
        "interp coreference --model lens:ORG/NAME --corpus gap-development.tsv",
    ),
    "experiments": ("interp experiments --model DIRECTORY",),
    "word-sense": ("interp word-sense --model minilm",),
    "next-word": ("interp next-word --out sizes",),
    "probes": ("interp probes --corpus train.conllu --held-out dev.conllu",),
    "patch": (
        "interp patch --clean 'The king was tired, because' --corrupt 'The queen was tired, because' "
        "--answer he --wrong she --site resid_pre --by-position",
        "interp patch --pairs pairs.csv --position END=-1 --metric loss --out losses",
    ),
    "compare": ("interp compare default DIRECTORY --corpus treebank.conllu",),
    "figures": (
        "interp figures report",
        "interp figures report position-heads labels --width 6.9 --format svg --out paper",
    ),
    "inspect": (
        "interp inspect report L3.H4",
        "interp inspect report cross.L1.H0 --json",
    ),
    "train": (
        "interp train default --set data.novels.path=FOLDER --out trained",
        "interp train default --out trained --resume",
    ),
    "generate": (
        "interp generate 'The old lady' --temperature 0.8 --top-p 0.9 --seed 1",
        "interp generate 'The old lady' --stop . --model lens:ORG/NAME",
    ),
    "models": ("interp models",),
}


def below(command: str) -> str:
    """What stands below the help of a command."""
    return "\n\n".join(["Examples:", *EXAMPLES[command]])
