"""Lots give the same results wherever they run, are kept until all are done, and never mix with another run's."""

import gc
import weakref
from collections import Counter
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from repeats import copying, repeating_texts
from threadpoolctl import threadpool_info, threadpool_limits

from analyses import report
from analyses.corpora import read
from analyses.execution import lots
from analyses.execution.cluster import ClusterError, Workers, connected, perform
from analyses.execution.encoding import decoded, encoded
from analyses.execution.lots import Setting, Shards, using
from analyses.labels import label
from analyses.labels.judgement import Labelled
from analyses.reading.inputs import Heads
from analyses.reading.windows import Reading
from analyses.scoring import collectors
from interp import InputError, Model, run
from models import load, planted

KEPT = {"a": torch.arange(6, dtype=torch.float64).reshape(2, 3), "b": torch.tensor([True, False])}


class Stop(BaseException):
    """Raised when a run is killed."""


def tensors_of(times: int) -> dict[str, torch.Tensor]:
    return {name: value.repeat(times, 1) for name, value in KEPT.items()}


def refused(times: int) -> None:
    raise InputError(f"expected fewer than {times}")


def blas_threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def shards_in(tmp_path: Path, content: object = "a model") -> Shards:
    return Shards.for_output(tmp_path / "out", content, {})


def counts(shards: Shards, *arguments: object, function=tensors_of) -> tuple[int, int]:
    """How many shards are read and written for one lot."""
    before = {**shards.counts}
    with using(Setting(shards)):
        lots.do(function, [arguments])
    return tuple(shards.counts[name] - before[name] for name in ("read", "written"))


def test_what_was_done_is_found_again_whole(tmp_path):
    shards = shards_in(tmp_path)
    steps: list[tuple[int, int | None]] = []
    with using(Setting(shards)):
        first, again = (lots.do(tensors_of, [(1,), (2,)], lambda *counts: steps.append(counts)) for _ in range(2))
        lots.do(tensors_of, [(1,), (3,), (2,)], lambda *counts: steps.append(counts))
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    torch.testing.assert_close(first, [tensors_of(1), tensors_of(2)], rtol=0, atol=0)  # with the same types
    assert steps == [(0, 2), (1, 2), (2, 2), (2, 2), (1, 3), (2, 3), (3, 3)]  # stored ones come immediately
    assert shards.counts == {"read": 4, "written": 3}
    shards.clear()
    assert not list(tmp_path.iterdir())


def test_numpy_sums_in_one_thread_wherever_a_lot_is_done():
    with threadpool_limits(2, "blas"):
        assert ({*lots.do(blas_threads, [()])[0]}, {*blas_threads()}) == ({1}, {2})


def test_other_arguments_functions_models_or_versions_of_our_code_find_nothing(tmp_path, monkeypatch):
    assert [counts(shards_in(tmp_path, content), 1) for content in ("a", "b", "a")] == [(0, 1), (0, 1), (1, 0)]
    assert counts(shards_in(tmp_path, "a"), 2) == (0, 1)
    assert counts(shards_in(tmp_path, "a"), 1, function=partial(tensors_of)) == (0, 1)
    assert counts(shards_in(tmp_path, "a"), 1, function=lambda times: times) == (0, 0)  # a lambda has no hash
    monkeypatch.setattr(lots, "code", lambda: "changed")
    assert counts(shards_in(tmp_path, "a"), 1) == (0, 1)


@pytest.mark.parametrize("damage", [lambda old: old[:-3], lambda old: b"", lambda old: old[:-1] + bytes([old[-1] ^ 1])])
def test_a_damaged_shard_is_made_anew(tmp_path, damage):
    counts(shards_in(tmp_path), 1)
    (path,) = shards_in(tmp_path).folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert [counts(shards_in(tmp_path), 1) for _ in range(2)] == [(0, 1), (1, 0)]


def test_a_disk_that_is_full_keeps_nothing_and_stops_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lots, "replacing", full)
    assert [counts(shards_in(tmp_path), 1) for _ in range(2)] == [(0, 0), (0, 0)]


def test_a_folder_that_is_a_link_is_refused_and_what_others_still_use_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / ".out.shards").symlink_to("mine")
    with pytest.raises(InputError, match=r"out\.shards is a link"):
        shards_in(tmp_path)
    (tmp_path / ".out.shards").unlink()
    (tmp_path / "mine/thesis.tex").write_text("mine")
    (tmp_path / "mine").rename(tmp_path / ".out.shards")
    ours, theirs = shards_in(tmp_path), shards_in(tmp_path, "another")
    counts(ours, 1)
    counts(theirs, 1)
    assert ours.others() == theirs.others() == 1
    ours.clear()
    assert counts(shards_in(tmp_path, "another"), 1) == (1, 0)
    theirs.clear()
    assert [path.name for path in theirs.folder.iterdir()] == ["thesis.tex"]


def test_what_is_kept_is_what_was_there():
    table = pd.DataFrame({"a": [1.5, np.nan], "b": ["x", None], "c": [True, False], "d": [1, 2]}, index=[3, 5])
    table["e"] = pd.array([1, pd.NA], dtype="Int64")
    table["f"] = pd.Series([1, "x"], dtype=object, index=table.index)
    tensors = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)), torch.tensor(2.5), torch.zeros(0, 2)
    numbers = [17 * each for each in ([1], [True], [0.1, -0.0], [1, True], [1 << 63, -1], [1 << 80], [0.5, 1])]
    heads = Heads.from_model(load("textbook"))
    value = {
        "t": [table, table.reset_index(drop=True)],
        3: (tensors, np.arange(6).reshape(2, 3), numbers),
        "n": None,
        "h": heads,
    }
    value |= {"c": Counter({"a b": 2}), "s": {"x", "y"}, "f": [float("nan"), -0.0, 1e-300, True, np.float32(0.1)]}
    content = encoded(value)
    again = decoded(content)
    for expected, copy in zip(value["t"], again["t"], strict=True):
        pd.testing.assert_frame_equal(expected, copy, check_exact=True)
    torch.testing.assert_close(again[3][0], tensors, rtol=0, atol=0)
    assert repr(again[3][2]) == repr(numbers)
    np.testing.assert_array_equal(again[3][1], value[3][1])
    assert (again["n"], again["h"], again["c"], again["s"]) == (None, heads, value["c"], value["s"])
    assert repr(again["f"]) == repr([float("nan"), -0.0, 1e-300, True, float(np.float32(0.1))])
    with pytest.raises(TypeError, match="is not a plain value"):
        encoded(lambda: 1)
    with pytest.raises(ValueError, match="not one of our classes"):
        decoded(content.replace(b"analyses.reading.inputs:Heads", b"subprocess.............:Popen"))


class Sent(Executor):
    """Somebody else's executor: lots pass through it as bytes, and return out of order."""

    def __init__(self):
        self.calls: list[tuple[int, ...]] = []

    def submit(self, fn, /, *args, **options):
        assert fn is perform
        assert not options
        self.calls.append(tuple(map(len, args)))
        future: Future = Future()
        try:
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def read_by(executor: Executor | None, model: Model, tmp_path: Path) -> list[pd.DataFrame]:
    from analyses.behaviours import OURS

    makers = [partial(each.collector, seed=0) for each in OURS.values() if each.attention == "self"]
    with using(Setting(shards_in(tmp_path, str(executor)), executor)):
        collected = collectors.collect_in_lots(Reading(model, read("sentences:30")), makers)
    return [each.table() for each in collected]


def test_any_executor_does_lots_and_tables_are_those_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(collectors, "LOT_WORDS", 800)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    model, stub = load("textbook"), Sent()
    local = read_by(None, model, tmp_path)
    assert len(stub.calls) == 0
    for expected, table in zip(local, read_by(stub, model, tmp_path), strict=True):
        pd.testing.assert_frame_equal(expected, table, check_exact=True)
    assert len(stub.calls) > 5
    assert max(map(max, stub.calls)) < 300_000  # models are sent by name


class LosesProbes(Sent):
    """An executor that breaks while probes are read, a part that a report can do without."""

    def submit(self, fn, /, *args, **options):
        if b"analyses.probe" in args[0]:
            raise BrokenExecutor("all workers are gone")
        return super().submit(fn, *args, **options)


def test_a_cluster_that_is_lost_in_a_part_that_may_be_refused_ends_the_run_and_keeps_its_lots(tmp_path):
    texts, out = [read("sentences:16")], tmp_path / "out"
    options = {"behaviours": ["part-of-speech"], "labels": False, "pairs": 10, "cluster": LosesProbes()}
    with pytest.raises(ConnectionError, match=r"all workers are gone.*the same command resumes"):
        report.build(load("textbook"), texts, out, **options)
    assert [*tmp_path.glob(".out.shards/*.shard")]


def next_ids(model: Model, text: str) -> list[int]:
    return run(model, text).logits[0].argmax(-1).tolist()


def test_what_a_cluster_cannot_do_is_refused_in_a_line():
    model = load("textbook")
    expected = next_ids(model, "The baker")
    with using(Setting(Shards(), Sent())):
        assert lots.do(partial(next_ids, model), [("The baker",)]) == [expected]
        with pytest.raises(ClusterError, match="cannot receive your own code"):
            lots.do(lambda: 1, [()])
        with pytest.raises(InputError, match="expected fewer than 3"):
            lots.do(refused, [(3,)])
        with pytest.raises(ClusterError, match="save this one, and load it by its directory"):
            lots.do(partial(next_ids, copying([planted.uniform], [planted.uniform])), [("a",)])
        with torch.no_grad():
            model.last.embed.token.weight[3, 3] += 1
        with pytest.raises(ClusterError, match=r"textbook on \S+ differs from the model here"):
            lots.do(partial(next_ids, model), [("The baker",)])
    with (
        using(Setting(Shards(), Older())),
        pytest.raises(ClusterError, match=r"worker on \S+ runs another version of interp"),
    ):
        lots.do(tensors_of, [(3,)])


def test_results_that_came_back_are_not_held_until_the_last():
    workers = Workers(Sent(), {})
    calls = [workers.submit(lots._perform, (tensors_of, times)) for times in (1, 2)]
    assert not workers._futures
    assert [decoded(call.result())["a"].shape for call in calls] == [(2, 3), (4, 3)]


def test_an_executor_s_own_result_is_let_go_once_it_is_here():
    """Otherwise, Dask would repeat a call whose worker dies later."""
    futures = []

    class Watched(Sent):
        def submit(self, fn, /, *args, **options):
            future = super().submit(fn, *args, **options)
            futures.append(weakref.ref(future))
            return future

    workers = Workers(Watched(), {})
    call = workers.submit(lots._perform, (tensors_of, 1))
    gc.collect()
    assert [future() for future in futures] == [None]
    assert decoded(call.result())["a"].shape == (2, 3)


def test_long_lists_of_whole_numbers_are_kept_as_they_are():
    largest = [-(2**63), 2**63 - 1] * 20
    for value in ([*range(40)], (*range(-20, 20),), largest, [2**70] * 20, [True] * 20, [1, "a"] * 20):
        again = decoded(encoded([value]))[0]
        assert repr(again) == repr(value)


class Older(Sent):
    """Workers with another version of our code."""

    def submit(self, fn, /, *args, **options):
        return super().submit(fn, *args[:-1], "of another version")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nowhere", "expected the address of a Dask scheduler"),
        ("tcp://host", "expected the address of a Dask scheduler"),
        ("http://127.0.0.1:80", "expected the address of a Dask scheduler"),
        ("tcp://10.0.0.1:8786", "use tls:// and --cluster-certificates FOLDER"),
        ("tls://10.0.0.1:8786", "use tls:// and --cluster-certificates FOLDER"),
        ("0.0.0.0:8786", "use tls:// and --cluster-certificates FOLDER"),
    ],
)
def test_a_cluster_that_is_no_safe_one_is_refused(address, why):
    pytest.importorskip("distributed", reason="needs Dask, of the extra `cluster`")
    with pytest.raises(InputError, match=why), connected(address):
        pass


def labelled(shards: Shards | None, exact: bool) -> Labelled:
    model = copying([planted.uniform], [planted.uniform])
    with using(Setting(shards or Shards())):
        return label(model, {"position": [*repeating_texts(20)]}, documents=6, words=27, exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.smoke)])
def test_labels_that_were_stopped_anywhere_are_those_of_one_run(tmp_path, monkeypatch, exact):
    whole, starts, write = labelled(None, exact), 0, Shards.write
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # lots run here, one by one
    while True:
        shards = shards_in(tmp_path)

        def stopping(self, path, content, most=1 + starts % 4):
            write(self, path, content)
            if self.counts["written"] == most:
                raise Stop

        with monkeypatch.context() as patched:
            patched.setattr(Shards, "write", stopping)
            before = len([*shards.folder.glob("*.shard")]) if shards.folder.exists() else 0
            try:
                result = labelled(shards, exact)
                break
            except Stop:
                assert shards.counts["read"] == before
                starts += 1
    assert starts > 2
    assert shards.counts["read"] == before
    for name in ("labels", "evidence"):
        pd.testing.assert_frame_equal(getattr(result, name), getattr(whole, name), check_exact=True)
