"""The table of client states: it reads as the list of trees that were written, from memory, from disk, from a file."""

import copy
import errno
import gc
import json
import os
import pickle
import shutil
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from archipel.core.trees import PerExample, flatten
from archipel.states import storage as columns
from archipel.states.placement import available_memory
from archipel.states.storage import FileColumn, MemoryColumn, OpenFile, in_memory, on_disk
from archipel.states.table import States
from archipel.states.table_file import read_states, write_states

COUNTS = [3, 1, 4, 2]


def values(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-50, 50, shape, generator=generator).to(dtype)


def entry(leaf, client, seed):
    """One client's leaf, of a kind ``(shape, dtype, per example)``, or an empty dict."""
    if leaf is None:
        return {}
    shape, dtype, is_per_example = leaf
    if is_per_example:
        return PerExample(values((COUNTS[client], *shape), dtype, seed + client))
    return values(shape, dtype, seed + client)


KINDS = {
    "model": ((2, 3), torch.float32, False),
    "count": ((), torch.int64, False),
    "seen": ((), torch.bool, False),
    "mask": ((5,), torch.bool, False),
    "half": ((3,), torch.bfloat16, False),
    "double": ((1, 2), torch.float64, False),
    "bytes": ((7,), torch.uint8, False),
    "none": ((0, 4), torch.float32, False),
    "nothing": None,
    "w": ((2,), torch.float32, True),
    "index": ((), torch.int64, True),
    "own": ((3,), torch.bfloat16, True),
    "is_empty_dict": ((0,), torch.float64, True),
}
STATES = {
    "every kind at once": lambda client, seed: {
        "z": {name: entry(kind, client, 10 * seed + i) for i, (name, kind) in enumerate(KINDS.items())},
        "a": {"b": {}, "c": values((2,), torch.float32, seed)},
    },
    "a bare tensor": lambda client, seed: entry(KINDS["model"], client, seed),
    "a bare PerExample": lambda client, seed: entry(KINDS["own"], client, seed),
    "an empty dict alone": lambda client, seed: {"inner": {}},
}


def assert_equal(one, other):
    left, right = flatten(one), flatten(other)
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert left[name].shape == right[name].shape, name
        assert torch.equal(left[name], right[name]), name


def assert_holds(states, trees):
    assert len(states) == len(trees)
    for found, expected in zip(states, trees, strict=True):
        assert_equal(found, expected)


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    return in_memory if request.param == "memory" else on_disk(tmp_path)


@pytest.mark.parametrize("kind", STATES)
def test_what_is_put_is_read(kind, store):
    trees = [STATES[kind](i, seed=1) for i in range(4)]
    states = States(COUNTS, store)
    assert_holds(states, [{}] * 4)
    for client in (2, 0, 3, 1):
        states.put(client, trees[client])
    assert_holds(states, trees)
    assert_equal(states[-1], trees[3])
    assert len(states[1:3]) == 2
    for found, expected in zip(states[::-2], trees[::-2], strict=True):
        assert_equal(found, expected)
    trees[2] = STATES[kind](2, seed=5)
    states.put(2, trees[2])
    assert_holds(states, trees)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [1, 2], [3, 1], [2, 0, 3], [2], []])
def test_stacked_states_are_rows_in_the_order_of_the_clients(ids, store):
    kind = STATES["every kind at once"]
    states, trees = States(COUNTS, store), [kind(i, seed=1) for i in range(4)]
    states.load(trees)
    stacked = states.read(torch.tensor(ids, dtype=torch.int64))
    for position, client in enumerate(ids):
        alone, padded = (
            flatten(trees[client]),
            {n: t if n.endswith("/") else t[position] for n, t in flatten(stacked).items()},
        )
        assert list(padded) == list(alone)
        for name, t in alone.items():
            if name.endswith("!"):
                assert torch.equal(padded[name][: COUNTS[client]], t)
                assert padded[name].shape == (max(COUNTS), *t.shape[1:])
                assert not padded[name][COUNTS[client] :].any()
            else:
                assert torch.equal(padded[name], t)
    # Written back to others of the same sizes, as they came, they are theirs.
    other = States(COUNTS, store)
    other.load([kind(i, seed=3) for i in range(4)])
    other.write(torch.tensor(ids, dtype=torch.int64), stacked)
    assert_holds(other, [trees[i] if i in ids else kind(i, seed=3) for i in range(4)])


def test_what_is_read_is_the_readers_own(store):
    states = States([2, 2], store)
    given = {"a": torch.zeros(2, 3), "w": PerExample(torch.zeros(2, 2))}
    states.write(torch.tensor([0, 1]), given)
    given["a"].fill_(9)
    for read in (
        lambda: states[0],
        lambda: states.read(torch.tensor([0, 1])),
        lambda: states.read(torch.tensor([1, 0])),
    ):
        for leaf in flatten(read()).values():
            leaf.fill_(7)
    assert_holds(states, [{"a": torch.zeros(3), "w": PerExample(torch.zeros(2))}] * 2)


def test_those_who_were_not_written_have_nothing(store):
    states = States(COUNTS, store)
    assert states.empty
    assert states.read(torch.tensor([0, 1])) == {}
    states.put(1, {"a": torch.ones(2)})
    assert not states.empty
    assert [bool(state) for state in states] == [False, True, False, False]
    assert states.read(torch.tensor([0, 3])) == {}
    with pytest.raises(ValueError, match=r"some have none\. .* init_client"):
        states.read(torch.tensor([0, 1]))


def test_a_failed_write_changes_nothing(store):
    states = States(COUNTS, store)
    states.write(torch.tensor([0, 1]), {"a": torch.ones(2, 3), "w": PerExample(torch.ones(2, 4))})
    before = list(states)
    for stacked, message in [
        ({"a": torch.ones(2, 3)}, "changed the shape of a client's state, at w"),
        ({"a": torch.ones(2, 4), "w": PerExample(torch.ones(2, 4))}, r"state, at a\. .* init_client"),
        ({"a": torch.ones(2, 3).double(), "w": PerExample(torch.ones(2, 4))}, "state, at a"),
        ({"a": torch.ones(2, 3), "w": torch.ones(2, 4)}, "state, at w"),
        ({"a": torch.ones(1, 3), "w": PerExample(torch.ones(1, 4))}, r"a has shape \(1, 3\); .* each of 2 clients"),
        ({"a": torch.tensor(1.0), "w": PerExample(torch.ones(2, 4))}, r"a has shape \(\)"),
        ({"a": torch.ones(2, 3), "w": PerExample(torch.ones(2, 2))}, "w has 2 rows at a client of 3 training examples"),
        ({"a": torch.ones(2, 3), "w": PerExample(torch.ones(2))}, "w has 0 rows at a client of 3"),
        ({}, "state, at a, w"),
    ]:
        with pytest.raises(ValueError, match=message):
            states.write(torch.tensor([0, 1]), stacked)
    for rows in (2, 4):
        with pytest.raises(ValueError, match=f"w has {rows} rows at a client of 3"):
            states.put(0, {"a": torch.ones(3), "w": PerExample(torch.ones(rows))})
    with pytest.raises(ValueError, match="w has 0 rows"):
        states.put(0, {"a": torch.ones(3), "w": PerExample(torch.tensor(1.0))})
    assert_holds(states, before)


@pytest.mark.parametrize("ids", [[4], [-1], [0, 4], [2, 3, 4]])
def test_there_are_no_other_clients(ids, store):
    states = States(COUNTS, store)
    states.load([{"a": torch.ones(1), "b": torch.zeros(1)}] * 4)
    index = torch.tensor(ids)
    for call in (
        lambda: states.read(index),
        lambda: states.write(index, {name: torch.full((len(ids), 1), 5.0) for name in "ab"}),
        lambda: states.put(ids[-1], {"a": torch.ones(1), "b": torch.ones(1)}),
        lambda: states[4],
        lambda: states[-5],
    ):
        with pytest.raises(IndexError, match="There are 4 clients, 0 to 3; asked for"):
            call()
    assert_holds(states, [{"a": torch.ones(1), "b": torch.zeros(1)}] * 4)


def test_the_order_of_entries_is_the_first_one(store):
    states = States([1, 1], store)
    states.put(0, {"b": torch.ones(1), "a": torch.zeros(1)})
    states.put(1, {"a": torch.zeros(1), "b": torch.ones(1)})
    assert [list(state) for state in states] == [["b", "a"], ["b", "a"]]
    assert_equal(states[0], states[1])


LEAVES = st.sampled_from([None, *(kind for kind in KINDS.values() if kind is not None)])
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["put", "write", "reload", "pass through a file"]), st.permutations(range(4)), st.integers(1, 4)
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(kinds=st.lists(LEAVES, min_size=1, max_size=4), calls=CALLS, disk=st.booleans())
def test_it_is_a_list_of_trees(tmp_path_factory, kinds, calls, disk):
    def tree(client, seed):
        return {f"{i}": entry(kind, client, 100 * seed + 10 * i) for i, kind in enumerate(kinds)}

    def padded(trees):
        longest = max(COUNTS)
        named = [flatten(t) for t in trees]
        grown = [
            {
                n: torch.cat([t, t.new_ones(longest - len(t), *t.shape[1:])]) if n.endswith("!") else t
                for n, t in one.items()
            }
            for one in named
        ]
        return {
            n.rstrip("!/"): {}
            if n.endswith("/")
            else (PerExample if n.endswith("!") else lambda t: t)(torch.stack([one[n] for one in grown]))
            for n in named[0]
        }

    store = on_disk() if disk else in_memory
    states, oracle = States(COUNTS, store), [{}] * 4
    for seed, (call, order, number) in enumerate(calls):
        ids = order[:number]
        if call == "put":
            oracle[ids[0]] = tree(ids[0], seed)
            states.put(ids[0], oracle[ids[0]])
        elif call == "write":
            new = [tree(i, seed) for i in ids]
            for i, one in zip(ids, new, strict=True):
                oracle[i] = one
            states.write(torch.tensor(ids), padded(new))
        elif call == "reload":
            again = States(COUNTS, on_disk() if seed % 2 else in_memory)
            again.load(states)
            states = again
        else:
            path = tmp_path_factory.mktemp("file") / "states"
            write_states(states, path)
            again = States(COUNTS, store)
            again.load(read_states(path))
            states = again
        assert_holds(states, oracle)


@pytest.mark.parametrize("source", ["memory", "disk", "file"])
@pytest.mark.parametrize("kernel", ["at once", "in parts", "not at all"])
@pytest.mark.parametrize("kind", STATES)
def test_a_table_is_loaded_from_another(kind, source, kernel, store, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "PIECE", 24)  # bytes: several pieces a column
    real = os.copy_file_range
    if kernel == "not at all":
        monkeypatch.delattr(os, "copy_file_range")
    elif kernel == "in parts":
        monkeypatch.setattr(os, "copy_file_range", lambda s, t, count, *at: real(s, t, min(count, 13), *at))
    trees = [STATES[kind](i, seed=1) for i in range(4)]
    first = States(COUNTS, on_disk(tmp_path) if source == "disk" else in_memory)
    for client in (0, 3):
        first.put(client, trees[client])
    given = first
    if source == "file":
        write_states(first, tmp_path / "file")
        given = read_states(tmp_path / "file")
    states = States(COUNTS, store)
    states.put(1, {"old": torch.ones(3)})
    states.load(given)
    assert_holds(states, [trees[0], {}, {}, trees[3]])
    states.put(0, STATES[kind](0, seed=2))
    assert_equal(given[0], trees[0])
    states.load(states)
    assert_holds(states, [STATES[kind](0, seed=2), {}, {}, trees[3]])


def test_a_copy_that_the_kernel_leaves_half_done_is_finished(tmp_path, monkeypatch):
    trees = [{"a": values((5,), torch.float32, i)} for i in range(4)]
    first = States(COUNTS, on_disk(tmp_path))
    first.load(trees)
    real, done = os.copy_file_range, []

    def some(source, target, count, *offsets):
        if done:
            raise OSError(errno.EXDEV, "another disk")
        done.append(real(source, target, min(count, 33), *offsets))
        return done[0]

    monkeypatch.setattr(os, "copy_file_range", some)
    second = States(COUNTS, on_disk(tmp_path))
    second.load(first)
    assert done == [33]
    assert_holds(second, trees)


def test_a_list_of_trees_replaces_everybodys(store):
    states = States(COUNTS, store)
    states.load([{"old": torch.ones(2)}] * 4)
    states.load([{}, {"a": torch.ones(3)}, {}, {"a": torch.zeros(3)}])
    assert_holds(states, [{}, {"a": torch.ones(3)}, {}, {"a": torch.zeros(3)}])
    states.load([{}] * 4)
    assert states.empty
    assert_holds(states, [{}] * 4)


def test_states_of_others_are_not_loaded():
    states = States(COUNTS)
    with pytest.raises(ValueError, match="There are 4 clients, and 2 states were given"):
        states.load([{}, {}])
    other = States([1, 2, 3, 4])
    other.put(0, {"a": torch.ones(1)})
    states.load(other)  # nothing in them depends on the numbers of examples
    assert_equal(states[0], {"a": torch.ones(1)})
    other = States([1, 2, 3, 4])
    other.put(0, {"w": PerExample(torch.ones(1))})
    with pytest.raises(ValueError, match="other numbers of training examples"):
        states.load(other)


def test_copies_have_their_columns_in_memory(store):
    trees = [STATES["every kind at once"](i, seed=1) for i in range(4)]
    states = States(COUNTS, store)
    states.load(trees)
    for again in (copy.deepcopy(states), pickle.loads(pickle.dumps(states))):
        assert again.describe() == {}
        assert_holds(again, trees)
        again.put(0, STATES["every kind at once"](0, seed=2))
    assert_holds(states, trees)


def test_a_file_goes_with_its_states(tmp_path):
    states = States(COUNTS, on_disk(tmp_path))
    states.put(0, {"a": torch.ones(3), "b": torch.ones(2)})
    assert states.describe() == {"states": "on disk"}
    assert States(COUNTS).describe() == {}
    assert list(tmp_path.iterdir()) == []
    column = states.columns["a"]
    number = column.file.descriptor
    del states
    gc.collect()
    assert torch.equal(column.read(slice(0, 1)), torch.ones(1, 3))
    del column
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**9, 10**9 - 1000, 1000))
    states = States(COUNTS, on_disk(tmp_path / "new"))
    with pytest.raises(OSError, match=r"need 1\.6e-06 GB on disk, and .*new has 1e-06 GB free\. .* larger disk"):
        states.put(0, {"a": torch.ones(100)})  # four clients of 400 bytes
    assert list(states) == [{}] * 4
    small = States(COUNTS, on_disk(tmp_path / "new"))
    small.put(0, {"a": torch.ones(50)})
    resident = States(COUNTS)
    resident.put(0, {"a": torch.ones(300)})
    with pytest.raises(OSError, match="GB free"):
        write_states(resident, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_table_takes_its_room_on_the_disk_at_once(tmp_path, monkeypatch):
    given = {"a": torch.ones(1000)}  # 16 kB of four clients
    states = States(COUNTS, on_disk(tmp_path))
    states.put(0, given)
    assert os.fstat(states.columns["a"].file.descriptor).st_blocks * 512 >= 16000

    def says(number):
        def refuse(*arguments):
            raise OSError(number, os.strerror(number))

        return refuse

    monkeypatch.setattr(os, "posix_fallocate", says(errno.EOPNOTSUPP))
    states = States(COUNTS, on_disk(tmp_path))
    states.put(1, given)
    assert_holds(states, [{}, given, {}, {}])
    monkeypatch.setattr(os, "posix_fallocate", says(errno.EDQUOT))
    with pytest.raises(OSError, match="quota"):
        States(COUNTS, on_disk(tmp_path)).put(0, given)


def test_a_file_that_was_cut_off_is_told(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(16))
    column = FileColumn(OpenFile(os.open(path, os.O_RDWR)), 0, (2,), torch.float32)
    assert not column.read(slice(0, 2)).any()
    os.truncate(path, 12)
    with pytest.raises(OSError, match="ends too early"):
        column.read(slice(0, 2))


def saved(tmp_path, kind="every kind at once"):
    trees = [STATES[kind](i, seed=1) for i in range(4)]
    states = States(COUNTS)
    for client in (3, 0, 1):
        states.put(client, trees[client])
    write_states(states, tmp_path / "file")
    return tmp_path / "file", [trees[0], trees[1], {}, trees[3]]


@pytest.mark.parametrize("kind", STATES)
def test_safetensors_reads_the_file(kind, tmp_path):
    path, trees = saved(tmp_path, kind)
    found = load_file(path)
    assert found.pop("counts").tolist() == COUNTS
    assert found.pop("written").tolist() == [True, True, False, True]
    named = [flatten(tree) for tree in trees]
    assert set(found) == {f"states/{name}" for name in named[0] if not name.endswith("/")}
    for name, t in found.items():
        parts = t.split(COUNTS) if name.endswith("!") else t
        for part, tree in zip(parts, named, strict=True):
            expected = tree.get(name.removeprefix("states/"))
            assert not part.any() if expected is None else torch.equal(part, expected)
    assert_holds(read_states(path), trees)


@pytest.mark.parametrize("letters", range(1, 9))
def test_every_tensor_of_the_file_lies_aligned(tmp_path, letters):
    states = States(COUNTS)
    tree = STATES["every kind at once"]
    states.load([tree(i, seed=1) | {letters * "n": torch.ones(1)} for i in range(4)])
    write_states(states, tmp_path / "file")
    header, data = header_of(tmp_path / "file")
    del header["__metadata__"]
    ends = 0
    for about in sorted(header.values(), key=lambda about: about["data_offsets"]):
        first, last = about["data_offsets"]
        width = (last - first) // (prod(about["shape"]) or 1)
        assert first == ends
        assert width == 0 or ((tmp_path / "file").stat().st_size - len(data) + first) % width == 0
        ends = last
    assert len(data) == ends


def header_of(path):
    """The header, and the bytes behind it."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@pytest.mark.parametrize(
    "change", [{"shape": [4, 3]}, {"dtype": "F64"}, {"data_offsets": [0, 8]}, {"data_offsets": [8, 10**6]}]
)
def test_a_header_that_says_something_else_is_told(tmp_path, change):
    states = States(COUNTS)
    states.load([{"a": torch.ones(2)}] * 4)
    write_states(states, tmp_path / "file")
    header, data = header_of(tmp_path / "file")
    header["states/a"] |= change
    text = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + data)
    with pytest.raises(ValueError, match="file ends before states/a does, or has another shape of it"):
        read_states(tmp_path / "file")


def test_a_file_is_read_when_it_is_asked_and_never_written(tmp_path):
    path, trees = saved(tmp_path)
    states = read_states(path)
    assert all(isinstance(column, FileColumn) for column in states.columns.values())
    path.rename(tmp_path / "moved")
    (tmp_path / "moved").unlink()
    assert_holds(states, trees)
    with pytest.raises(OSError, match="Bad file descriptor"):
        states.put(0, trees[0])


def test_nobodys_states_pass_through_a_file(tmp_path):
    write_states(States(COUNTS), tmp_path / "file")
    again = read_states(tmp_path / "file")
    assert_holds(again, [{}] * 4)
    assert again.shapes is None


def test_what_safetensors_has_no_name_for_is_told(tmp_path):
    states = States([1])
    states.put(0, {"a": {"b": torch.zeros(2, dtype=torch.complex128)}})
    with pytest.raises(TypeError, match=r"holds torch\.complex128 at a/b, which a checkpoint cannot store"):
        write_states(states, tmp_path / "file")


def test_every_cut_of_a_file_is_told(tmp_path):
    path, _ = saved(tmp_path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError):  # noqa: PT011 (JSON's own messages among them)
            read_states(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"states/a": torch.zeros(3, 2)}, "has tensors that are not those of 4 clients"),
        (lambda t: t | {"states/w!": torch.zeros(4, 2)}, "has tensors that are not those of 4 clients"),
        (lambda t: t | {"states/more": torch.zeros(4)}, "has tensors that are not those of 4 clients"),
        (lambda t: t | {"counts": torch.tensor([1, 2, 3])}, "does not list its clients"),
        (lambda t: t | {"written": torch.zeros(4, dtype=torch.int64)}, "does not list its clients"),
        (lambda t: {"counts": t["counts"][:0], "written": t["written"][:0]}, "does not list its clients"),
    ],
)
def test_tensors_that_are_no_table_are_told(tmp_path, change, message):
    states = States(COUNTS)
    states.load([{"a": torch.ones(2), "w": PerExample(torch.ones(n, 2))} for n in COUNTS])
    write_states(states, tmp_path / "file")
    save_file(change(load_file(tmp_path / "file")), tmp_path / "file", {"order": json.dumps(["a", "w!"])})
    with pytest.raises(ValueError, match=message):
        read_states(tmp_path / "file")


def test_a_column_in_memory_and_one_in_a_file_are_alike(tmp_path):
    table = values((6, 2), torch.int64, 0)
    file = FileColumn(OpenFile(os.open(tmp_path / "column", os.O_RDWR | os.O_CREAT)), 16, (2,), torch.int64)
    resident = MemoryColumn(torch.zeros(6, 2, dtype=torch.int64))
    for column in (file, resident):
        column.write(slice(0, 6), table)
        column.write(torch.tensor([5, 2, 1]), table[:3])
        column.write(slice(3, 3), table[:0])
    assert torch.equal(file.read(slice(0, 6)), resident.read(slice(0, 6)))
    index = torch.tensor([4, 4, 0, 1, 2, 5])
    assert torch.equal(file.read(index), table[torch.tensor([4, 4, 0, 2, 1, 0])])
    assert torch.equal(file.read(index), resident.read(index))


def machine(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_memory(tmp_path)


GROUP = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 5\ninactive_file 200\nactive_file 9\n"}


def test_available_memory_is_the_machines_or_its_groups(tmp_path):
    def of(folder, **changed):
        return {f"{folder}/{name}": text for name, text in (GROUP | changed).items()}

    assert available_memory(tmp_path) is None
    assert machine(tmp_path, **{"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:     2 kB\nCached: 5 kB\n"}) == 2048
    tell = {"proc/self/cgroup": "5:cpuset:/x\n0::/a/b\n"}
    assert machine(tmp_path, **tell) == 2048
    # Nothing of the process's own group is seen, as in a container: the topmost counts.
    assert machine(tmp_path, **of("sys/fs/cgroup", **{"memory.max": "2000"})) == 1500
    assert machine(tmp_path, **of("sys/fs/cgroup/a/b", **{"memory.max": "max"})) == 1500
    assert machine(tmp_path, **of("sys/fs/cgroup/a")) == 500
    assert machine(tmp_path, **of("sys/fs/cgroup/a/b", **{"memory.max": "600"})) == 100
    assert machine(tmp_path, **of("sys/fs/cgroup/a/b", **{"memory.max": "300"})) == 0
    old = {
        "proc/self/cgroup": "3:cpu,cpuacct:/\n4:hugetlb,memory:/d\n",
        "sys/fs/cgroup/memory/d/memory.limit_in_bytes": "900",
        "sys/fs/cgroup/memory/d/memory.usage_in_bytes": "800",
        "sys/fs/cgroup/memory/d/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
    }
    assert machine(tmp_path, **old) == 150
