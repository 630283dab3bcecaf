import os
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import grouped, ranks, small
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rocstack_trainer.config import Config, Data
from rocstack_trainer.data import column, tables, tokens
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.errors import ConfigError, PeerLostError
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import peers
from rocstack_trainer.ranks.peers import Peers

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the ranks are forked
ALONE = Rank(device="cpu", backend="gloo")
LISTS = pa.list_(pa.int64())
DOCUMENTS = ["ab", None, "", "ü", "c" * 5000]


def write(path: Path, name: str = "text", values: Any = DOCUMENTS, kind: Any = None, **how: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": range(len(values)), name: pa.array(values, kind)}), path, **how)
    return path


def prepared(path: Path, *overrides: str, vocab: int = 256, rank: Rank = ALONE, said: list[str] | None = None) -> Data:
    config = small(f"data.path={path}", "data.seq_len=4", *overrides)
    return tokens.prepare(config, rank, vocab, (said if said is not None else []).append)


def stream(data: Data) -> list[list[int]]:
    """The tokens of each file that was made."""
    return [np.fromfile(file, np.dtype(data.dtype)).tolist() for file in sorted(Path(data.path).glob("*"))]


def refused(path: Path, *overrides: str, vocab: int = 256) -> str:
    with pytest.raises(ConfigError) as error:
        prepared(path, *overrides, vocab=vocab)
    assert not list(path.parent.glob("rocstack-tokens/*/*")), "something was left"
    return str(error.value)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Characters a to e and the end; its file says to cut at 3 tokens, which is not for training."""
    words = {letter: i for i, letter in enumerate("abcde")} | {"<end>": 5, "?": 6}
    raw = Tokenizer(models.WordLevel(words, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.enable_truncation(3)
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", bos_token="<end>", model_max_length=3)
    fast.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_text_becomes_bytes_with_an_end_after_each_document(tmp_path: Path) -> None:
    said: list[str] = []
    data = prepared(write(tmp_path / "d/a.parquet"), said=said)
    assert stream(data) == [[97, 98, 255, 0xC3, 0xBC, 255, *[99] * 5000, 255]]
    assert data.dtype == "uint16"
    assert said[0] == f"tokens: {tmp_path}/d/a.parquet, 1 file(s), column text as bytes -> {data.path}"
    assert said[1:] == ["tokens: 2 null or empty rows skipped"]
    assert Samples(data, 2, 1, 256).load(np.array([0]), "cpu")[0].tolist() == [[97, 98, 255, 0xC3]]


@pytest.mark.parametrize("where", ["data.tokenizer", "model.path"])
def test_text_through_a_tokenizer(tmp_path: Path, tokenizer: Path, where: str) -> None:
    data = prepared(write(tmp_path / "d/a.parquet", values=["abcdeabc", "e"]), f"{where}={tokenizer}", vocab=7)
    assert stream(data) == [[0, 1, 2, 3, 4, 0, 1, 2, 5, 4, 5]]


@pytest.mark.parametrize(
    "kind", [LISTS, pa.large_list(pa.int32()), pa.list_(pa.uint16()), pa.list_(pa.int32(), 3)], ids=str
)
def test_lists_of_tokens_are_used_as_they_are(tmp_path: Path, kind: pa.DataType) -> None:
    said: list[str] = []
    path = write(tmp_path / "d/a.parquet", "input_ids", [[1, 2, 3], None, [300, 5, 6]], kind)
    data = prepared(path, vocab=301, said=said)
    assert stream(data) == [[1, 2, 3, 300, 5, 6]]
    assert said[1:] == ["tokens: 1 null or empty rows skipped"]


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "d/a.parquet", "input_ids", [[70_000, 1, 2, 3, 4]], LISTS)
    data = prepared(path, vocab=100_000)
    assert (data.dtype, stream(data)) == ("uint32", [[70_000, 1, 2, 3, 4]])
    assert prepared(write(tmp_path / "d/b.parquet", "input_ids", [[1]], LISTS), vocab=1 << 16).dtype == "uint16"


def test_input_ids_come_before_text_and_a_column_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    table = pa.table({"text": ["ab"], "input_ids": [[7]], "code": pa.array(["c"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "d/a.parquet")
    assert stream(prepared(tmp_path / "d/a.parquet")) == [[7]]
    assert stream(prepared(tmp_path / "d/a.parquet", "data.column=text")) == [[97, 98, 255]]
    assert stream(prepared(tmp_path / "d/a.parquet", "data.column=code")) == [[99, 255]]


def test_row_groups_of_many_files_keep_their_order(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"d/x-{i}-of-3.parquet", values=[f"{i}{j:04}" for j in range(2000)], row_group_size=300)
    data = prepared(tmp_path / "d")
    for i, found in enumerate(stream(data)):
        assert bytes(found) == b"".join(b"%d%04d\xff" % (i, j) for j in range(2000))


def test_tokens_are_made_once_and_anew_after_a_change(tmp_path: Path) -> None:
    path = write(tmp_path / "d/a.parquet")
    first = prepared(path)
    (file,) = Path(first.path).iterdir()
    file.write_bytes(b"mine")  # would not survive a second making
    said: list[str] = []
    assert prepared(path, said=said) == first
    assert (file.read_bytes(), said) == (b"mine", [])
    os.utime(path, ns=(1, 1))
    assert prepared(path).path != first.path
    assert prepared(path, vocab=1 << 17).path != first.path
    other = prepared(path, f"data.cache={tmp_path}/c")
    assert other.path.startswith(f"{tmp_path}/c/")
    assert stream(other) == stream(prepared(path))


def test_another_tokenizer_has_another_cache_and_a_copy_has_the_same(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path / "d/a.parquet", values=["abc"])
    with_end = prepared(path, f"data.tokenizer={tokenizer}", vocab=7)
    copy = tokenizer.rename(tmp_path / "copy")
    assert prepared(path, f"data.tokenizer={copy}", vocab=7).path == with_end.path
    (copy / "tokenizer.json").write_text(
        (copy / "tokenizer.json").read_text().replace('"max_length": 3', '"max_length": 4')
    )
    assert prepared(path, f"data.tokenizer={copy}", vocab=7).path != with_end.path


def test_what_an_ended_preparation_left_is_used_and_its_rest_removed(tmp_path: Path) -> None:
    for i in range(2):
        write(tmp_path / f"d/{i}.parquet", values=[f"number {i}"])
    folder = Path(prepared(tmp_path / "d").path)
    done, lost = sorted(folder.iterdir())
    done.write_bytes(b"mine")
    lost.unlink()
    dead, live = folder / f"{lost.name}.n1-7.tmp", folder / f"{lost.name}.n2-8.tmp"
    dead.write_bytes(b"half")
    live.write_bytes(b"half")
    os.utime(dead, (1, 1))
    prepared(tmp_path / "d")
    assert sorted(folder.iterdir()) == sorted([done, lost, live])
    assert done.read_bytes() == b"mine"


# What can be wrong


def test_a_wrong_column_is_answered_with_those_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "d/a.parquet", "content")
    assert refused(path, "data.column=contents") == (
        f"{path}: no column contents; it has id (int64), content (string)\n  set --data.column=content"
    )
    assert (
        "no column messages, input_ids or text; it has id (int64), content (string)\n  set --data.column=content"
        in refused(path)
    )
    assert "column id is int64: it must be text, lists of whole numbers, or lists of messages" in refused(
        path, "data.column=id"
    )
    path = write(tmp_path / "d/b.parquet", "input_ids", [[0.5]])
    assert "column input_ids is list<element: double>" in refused(path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("input_ids", [[1, None]], "has null among its numbers"),
        ("input_ids", [[1, 256]], "has token 256, the model knows 0 to 255"),
        ("input_ids", [[-100, 3]], "has token -100"),
        ("text", [None, ""], "no token"),
        ("text", pa.array([], pa.string()), "no token"),
    ],
)
def test_rows_that_are_no_tokens_are_refused(tmp_path: Path, name: str, values: Any, message: str) -> None:
    path = write(tmp_path / "d/a.parquet", name, values)
    error = refused(path)
    assert error.startswith(f"{path}: ")
    assert message in error


def test_a_cut_or_damaged_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "d/a.parquet")
    bad = write(tmp_path / "d/b.parquet", values=["some text"] * 5000)
    whole = bad.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    zeros = whole[:4] + bytes(len(whole) - footer - 4) + whole[-footer:]
    for damaged in (whole[:-100], whole[:50], b"", zeros):
        bad.write_bytes(damaged)
        assert refused(tmp_path / "d").startswith(f"{bad}: can't be read as parquet, it is cut or damaged: ")


def test_text_needs_a_tokenizer_that_fits(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path / "d/a.parquet")
    assert "vocab_size=256, not 200" in refused(path, vocab=200)
    assert f"model.path: {tmp_path} has no tokenizer" in refused(path, f"model.path={tmp_path}")
    assert "has token 6, the model knows 0 to 5" in refused(path, f"data.tokenizer={tokenizer}", vocab=6)
    (tokenizer / "tokenizer.json").write_text("{")
    assert "the tokenizer can't be loaded" in refused(path, f"data.tokenizer={tokenizer}")


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    path = write(tmp_path / "d/a.parquet")
    assert "no end-of-text token\n" in refused(path, f"data.tokenizer={tokenizer}")


@pytest.mark.parametrize("offsets", [(0, 1 << 30, 8), (0, 4, 1 << 30), (0, 8, 4), (-9, 4, 8)])
def test_an_arrow_file_whose_offsets_lead_elsewhere_is_refused(tmp_path: Path, offsets: Any) -> None:
    batch, path = pa.record_batch({"text": ["abcd", "efgh"]}), tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    right, wrong = (np.array(each, "<i4").tobytes() for each in ((0, 4, 8), offsets))
    path.write_bytes(path.read_bytes().replace(right, wrong))
    assert wrong in path.read_bytes()
    assert "damaged" in refused(path)


def test_a_number_that_no_token_has_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text(f'{{"input_ids": [1, {10**40}]}}\n')
    assert f"{path}:1: input_ids has other things than whole numbers" in refused(path)


@pytest.mark.parametrize("rows", [10**5, 10**9, 1 << 62])
@pytest.mark.parametrize("values", [["ab"] * 1237, [[1, 2]] * 1237], ids=["text", "ids"])
def test_an_arrow_file_that_says_more_rows_than_it_has_is_refused(tmp_path: Path, values: Any, rows: int) -> None:
    batch, path = pa.record_batch({"text": values}), tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    right, wrong = (np.array([each], "<i8").tobytes() for each in (1237, rows))
    path.write_bytes(path.read_bytes().replace(right, wrong))
    assert "damaged" in refused(path)


@pytest.mark.parametrize("which", ["rocstack-tokens", "rocstack-tokens/key"])
@pytest.mark.parametrize("how", ["others", "link", "owner"])
def test_tokens_that_somebody_else_could_have_made_are_refused(tmp_path: Path, which: str, how: str) -> None:
    path = write(tmp_path / "d/a.parquet")
    folder = Path(prepared(path).path)
    there = folder.parent if which == "rocstack-tokens" else folder
    if how == "others":
        there.chmod(0o777)
    elif how == "link":
        there.rename(tmp_path / "elsewhere")
        there.symlink_to(tmp_path / "elsewhere")
    elif os.geteuid() == 0:
        os.chown(there, 65534, 65534)
    else:
        pytest.skip("only root can give a folder away")
    with pytest.raises(ConfigError, match=r"its tokens may not be those of the data\n  set data.cache to a folder of"):
        prepared(path)
    assert prepared(path, f"data.cache={tmp_path}/own").path.startswith(f"{tmp_path}/own/")


def test_the_owner_of_the_data_may_own_its_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "d/a.parquet")
    folder = Path(prepared(path).path)
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for each in (path, folder, folder.parent):
        os.chown(each, 65534, 65534)
    assert prepared(path).path == str(folder)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "d/a.parquet")
    (tmp_path / "d/rocstack-tokens").write_text("a file")
    with pytest.raises(ConfigError, match=r"data.cache: .*/d/rocstack-tokens on .*\n  set data.cache to a folder"):
        prepared(path)


# Several ranks


def on_rank(rank: Rank, config: Config, how: str = "") -> tuple[Data, list[str]]:
    said: list[str] = []
    config = replace(config, data=replace(config.data, cache=config.data.cache.replace("NODE", str(rank.rank // 2))))
    if how == "full disk" and rank.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    if how == "own disks":
        tokens._node = lambda: f"n{rank.rank // 2}"
    if how == "slow":
        peers.BEAT_S, tables.BATCH_BYTES = 0.05, 2000
        if rank.rank == 1:
            slow(0.02)
    try:
        return tokens.prepare(config, rank, 256, said.append), said
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def slow(seconds: float) -> None:
    original = column.Column.batches

    def batches(self: column.Column, path: Path) -> Iterator[Any]:
        for batch in original(self, path):
            time.sleep(seconds)
            yield batch

    column.Column.batches = batches


def many(folder: Path, files: int) -> Config:
    for i in range(files):
        write(folder / f"d/{i}.parquet", values=[f"{i} {j}" for j in range(500)])
    return small(f"data.path={folder}/d", "parallel.timeout_s=5")


@pytest.mark.parametrize("how", ["", "slow"])
def test_ranks_share_the_files(tmp_path: Path, how: str) -> None:
    config = many(tmp_path, 5)
    found = ranks(3, grouped, on_rank, config, how)
    assert [data for data, _ in found] == [found[0][0]] * 3
    assert len(stream(found[0][0])) == 5
    made = {path.stat().st_ino for path in Path(found[0][0].path).iterdir()}
    assert ranks(2, grouped, on_rank, config)[0][1] == []  # nothing more to do
    assert made == {path.stat().st_ino for path in Path(found[0][0].path).iterdir()}


def test_nodes_with_disks_of_their_own_each_make_all(tmp_path: Path) -> None:
    config = many(tmp_path, 3)
    config = replace(config, data=replace(config.data, cache=f"{tmp_path}/disk-NODE"))
    found = ranks(4, grouped, on_rank, config, "own disks")
    assert [Path(data.path).parent.name for data, _ in found] == ["disk-0", "disk-0", "disk-1", "disk-1"]
    one, _, two, _ = (stream(data) for data, _ in found)
    assert len(one) == 3
    assert one == two


def test_runs_that_start_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Groups without a common process group: three processes, each a world of one."""
    config = many(tmp_path, 4)
    found = ranks(3, apart, config)
    assert not [error for error in found if isinstance(error, Exception)], found
    assert [len(stream(data)) for data, _ in found] == [4] * 3
    assert not list(Path(found[0][0].path).glob("*.tmp"))


def apart(rank: Rank, config: Config) -> tuple[Data, list[str]]:
    return on_rank(Rank(group=rank.rank, groups=3, device="cpu", backend="gloo"), config, "slow")


def test_a_rank_that_fails_ends_all_with_its_message(tmp_path: Path) -> None:
    first, second = ranks(2, grouped, on_rank, many(tmp_path, 4), "full disk")
    assert isinstance(first, ConfigError)
    assert first.everywhere
    assert str(first) == str(second)
    assert "data.cache: " in str(first)
    assert "File too large" in str(first)
    assert not list(tmp_path.rglob("*.tmp"))


def dies(rank: Rank, config: Config) -> None:
    if rank.rank == 1:
        Peers.agree = lambda *_: os._exit(9)
    tokens.prepare(config, rank, 256, print)


def test_a_rank_that_is_lost_ends_the_others(tmp_path: Path) -> None:
    first, _ = ranks(2, grouped, dies, many(tmp_path, 2))
    assert isinstance(first, PeerLostError)


@pytest.mark.parametrize("bad", ["a.parquet", "missing"])
def test_all_ranks_refuse_with_one_message(tmp_path: Path, bad: str) -> None:
    write(tmp_path / "d/a.parquet", "other", [1])
    first, second = ranks(2, grouped, on_rank, small(f"data.path={tmp_path}/d/{bad}"))
    assert isinstance(first, ConfigError)
    assert first.everywhere
    assert str(first) == str(second)


def older_copy(rank: Rank, folder: Path) -> Data:
    return tokens.prepare(small(f"data.path={folder}/{rank.rank}"), rank, 256, print)


def test_a_node_with_other_data_is_named(tmp_path: Path) -> None:
    for rank, size in enumerate((100, 90)):
        (tmp_path / f"{rank}").mkdir()
        (tmp_path / f"{rank}/a.bin").write_bytes(bytes(size))
    for error in ranks(2, grouped, older_copy, tmp_path):
        assert "data.path: the files differ between the ranks: rank 1 on " in str(error)
        assert "has 1 file(s) with 90 bytes, the others 1 file(s) with 100 bytes" in str(error)


def hours(rank: Rank, seconds: float) -> list[list[int]]:
    """Rank 1 has work for longer than a collective may take."""
    peers.BEAT_S = 0.1
    told: list[list[int]] = []

    def work() -> Iterator[tuple[int, int]]:
        until = time.monotonic() + seconds * rank.rank
        while time.monotonic() < until:
            time.sleep(0.01)
            yield 0, 1

    Peers(rank).in_step(work(), told.append)
    return told


def limited(rank: Rank) -> list[list[int]]:
    from rocstack_trainer.ranks import launch

    with launch.process_group(rank, 1):
        return hours(rank, 2.5)


def test_waiting_may_take_longer_than_the_time_limit_of_a_collective() -> None:
    one, two = ranks(2, limited)
    assert one == two
    assert len(one) > 10
    assert one[-1][1] > 50


def test_progress_is_said_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(tokens.time, "monotonic", lambda: now)
    said: list[str] = []
    progress = tokens.Progress(said.append)
    for now in range(2, 7200, 2):
        progress([7200, now, now * 1000])
    assert said[0] == "tokens: 0% of 7,200 rows, 12,000 tokens, 1,000 a second"
    assert 20 < len(said) < 80
