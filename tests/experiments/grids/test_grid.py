"""The grid: what is done is kept, what fails is named, and no process outlives it."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rich.console import Console

from archipel.core.lock import locked
from archipel.experiments.grids.display import time_left
from archipel.experiments.grids.grid import Cell, CellsFailed, perform, run_grid
from archipel.experiments.grids.workers import in_processes

QUIET = Console(file=open(os.devnull, "w"))  # noqa: SIM115 (as long as the tests)


def square(folder, x):
    """Notes that it was called, and refuses 3."""
    with (folder / "calls").open("a") as file:
        file.write("x")
    print("squaring", x)
    if x == 3:
        raise ValueError("three can't be squared")
    return {"square": x * x, "threads": torch.get_num_threads()}


def misfortune(folder, how):
    if how == "dies":
        os._exit(7)
    if how == "exits":
        sys.exit("enough")
    if how == "bug":
        raise KeyError("no such thing")
    if how == "sleeps":
        (folder / "pid").write_text(str(os.getpid()))
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            (folder / "saved").write_text("")  # as a checkpoint
            raise
    return {"how": how, "threads": torch.get_num_threads(), "pid": os.getpid()}


@dataclass(frozen=True)
class Unsendable:
    """A dataclass that JSON can hold and pickle can't."""

    x: int = 1

    def __reduce__(self):
        raise TypeError("no")


def squares(*numbers):
    return [Cell(f"squares/{x}", square, {"x": x}) for x in numbers]


def calls(folder):
    return {path.parent.name: len(path.read_text()) for path in folder.glob("squares/*/calls")}


def appears(path, seconds=180):
    end = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, f"{path} didn't appear"
        time.sleep(0.02)
    return path.read_text()


def test_what_is_done_is_not_done_again(tmp_path):
    first = run_grid(squares(4, 1), tmp_path, workers=1, console=QUIET)
    assert [(name, result["square"]) for name, result in first.items()] == [("squares/4", 16), ("squares/1", 1)]
    assert "squaring 4" in (tmp_path / "squares/4/log.txt").read_text()
    more = run_grid(squares(1, 2, 4), tmp_path, workers=1, console=QUIET)
    assert [result["square"] for result in more.values()] == [1, 4, 16]
    assert calls(tmp_path) == {"1": 1, "2": 1, "4": 1}
    run_grid(squares(1), tmp_path, workers=1, fresh=True, console=QUIET)
    assert calls(tmp_path) == {"1": 1, "2": 1, "4": 1}  # anew: the folder was emptied before


def test_other_arguments_are_an_error_that_names_them(tmp_path):
    run_grid([Cell("a", square, {"x": 1})], tmp_path, workers=1, console=QUIET)
    with pytest.raises(ValueError, match=r"x: 1 there, 2 now"):
        run_grid([Cell("a", square, {"x": 2})], tmp_path, workers=1, console=QUIET)
    with pytest.raises(ValueError, match=r"square there, by .*misfortune now"):
        run_grid([Cell("a", misfortune, {"x": 1})], tmp_path, workers=1, console=QUIET)


@pytest.mark.parametrize("missing", ["result", "seconds", "arguments", "fingerprint", None])
def test_a_damaged_result_is_told_by_its_name(tmp_path, missing):
    run_grid([Cell("a", square, {"x": 1})], tmp_path, workers=1, console=QUIET)
    path = tmp_path / "a/result.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in record.items() if key != missing}) if missing else "{")
    with pytest.raises(ValueError, match=r"a/result.json is not a cell's result.*--fresh"):
        run_grid([Cell("a", square, {"x": 1})], tmp_path, workers=1, console=QUIET)
    assert run_grid([Cell("a", square, {"x": 1})], tmp_path, workers=1, fresh=True, console=QUIET)["a"]["square"] == 1


def intruder(folder):
    """Asks for another cell of the grid that it runs in, as a second command would."""
    try:
        run_grid(squares(1), folder.parent, workers=1, console=QUIET)
    except ValueError as error:
        return {"message": str(error)}
    return {"message": ""}


def test_a_second_command_meanwhile_is_told_so(tmp_path):
    # here, and from another process
    for workers, cells in ((1, ["a"]), (2, ["b", "c"])):
        found = run_grid([Cell(name, intruder) for name in cells], tmp_path, workers=workers, console=QUIET)
        for name in cells:
            assert found[name]["message"].startswith(f"Another process is writing to {tmp_path}; wait until it ends")
    # what is done can be read all the same, and afterwards all goes on
    with locked(tmp_path):
        assert run_grid([Cell("a", intruder)], tmp_path, workers=1, console=QUIET) == {"a": found["b"]}
        with pytest.raises(ValueError, match="Another process"):
            run_grid([Cell("a", intruder)], tmp_path, workers=1, fresh=True, console=QUIET)
    assert run_grid(squares(1), tmp_path, workers=1, console=QUIET)["squares/1"]["square"] == 1


def test_a_cell_that_fails_is_named_and_tried_again(tmp_path):
    with pytest.raises(CellsFailed, match=r"1 of 3 cells failed(.|\n)*squares/3: three can't be squared") as failure:
        run_grid(squares(1, 3, 2), tmp_path, workers=1, console=QUIET)
    assert [result["square"] for result in failure.value.results.values()] == [1, 4]
    with pytest.raises(CellsFailed):
        run_grid(squares(1, 3, 2), tmp_path, workers=1, console=QUIET)
    assert calls(tmp_path) == {"1": 1, "2": 1, "3": 2}
    assert "Traceback" in (tmp_path / "squares/3/log.txt").read_text()


def test_the_longest_begin_first(tmp_path):
    cells = [Cell(str(x), square, {"x": x}, cost=x) for x in (1, 4, 2)]
    run_grid(cells, tmp_path, workers=1, console=QUIET)
    done = sorted((tmp_path / str(x) / "result.json" for x in (1, 2, 4)), key=lambda path: path.stat().st_mtime_ns)
    assert [path.parent.name for path in done] == ["4", "2", "1"]


@pytest.mark.parametrize("name", ["", "../up", "/root"])
def test_a_cells_folder_is_below_the_grids(name):
    with pytest.raises(ValueError, match="folder below its grid's"):
        Cell(name, square, {"x": 1})


def test_cells_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the folders of a and a/b overlap"):
        run_grid([Cell("a/b", square, {"x": 1}), Cell("a", square, {"x": 2})], tmp_path, console=QUIET)
    with pytest.raises(ValueError, match="top level"):
        Cell("a", lambda folder: {})
    with pytest.raises(ValueError, match=r"Cell b cannot be sent(.|\n)*numbers, texts"):
        run_grid([Cell("a", square, {"x": 1}), Cell("b", square, {"x": Unsendable()})], tmp_path, workers=2)
    with pytest.raises(ValueError, match="workers must be"):
        run_grid(squares(1), tmp_path, workers=0, console=QUIET)


def test_processes_do_what_can_be_done(tmp_path):
    cells = [Cell(how, misfortune, {"how": how}) for how in ("dies", "bug", "exits", "well", "fine")]
    with pytest.raises(CellsFailed) as failure:
        run_grid(cells, tmp_path, workers=2, console=QUIET)
    results, messages = failure.value.results, failure.value.messages
    assert results.keys() == {"well", "fine"}
    assert all(result["threads"] == 1 and result["pid"] != os.getpid() for result in results.values())
    assert "exit code 7" in messages["dies"]
    assert "KeyError" in messages["bug"]
    assert "sys.exit('enough')" in messages["exits"]
    assert json.loads((tmp_path / "well/result.json").read_text())["arguments"] == {"how": "well"}
    assert multiprocessing.active_children() == []


@pytest.fixture
def hears():
    """Ctrl-C as a command hears it: the processes that tests run in may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_keeps_what_is_done_and_says_how_to_go_on(tmp_path, hears):
    cells = [Cell(how, misfortune, {"how": how}, cost) for how, cost in (("fine", 3), ("sleeps", 2), ("never", 1))]

    def interrupt():
        appears(tmp_path / "sleeps/pid")
        os.kill(os.getpid(), signal.SIGINT)

    run_grid(cells[:1], tmp_path, workers=1, console=QUIET)
    # two at a time would begin the third: so the second worker has a sleeper, too
    cells[2:] = [Cell("other", misfortune, {"how": "sleeps"}), cells[2]]
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt, match=r"1 of 4 cells are done, in .*\. The same command resumes"):
        run_grid(cells, tmp_path, workers=2, console=QUIET)
    assert (tmp_path / "sleeps/saved").exists()
    assert not (tmp_path / "never").exists()
    assert multiprocessing.active_children() == []


def a_worker_that_sleeps(folder):
    list(in_processes(perform, [("a", (Cell("a", misfortune, {"how": "sleeps"}), Path(folder)))], 1))


def test_no_process_outlives_a_grid_that_is_killed(tmp_path):
    grid = multiprocessing.get_context("spawn").Process(target=a_worker_that_sleeps, args=(str(tmp_path),))
    grid.start()
    worker = int(appears(tmp_path / "pid"))
    grid.kill()
    grid.join()
    end = time.monotonic() + 60
    while runs(worker):
        assert time.monotonic() < end, f"{worker} is still there"
        time.sleep(0.05)


def runs(pid):
    """Whether a process is there and hasn't ended; one that ended stays as a zombie until its new parent looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_cell_that_takes_too_long_is_ended(tmp_path):
    cells = [Cell(how, misfortune, {"how": how}) for how in ("sleeps", "well")]
    with pytest.raises(CellsFailed, match=r"1 of 2 cells failed(.|\n)*sleeps: it took longer than 1 s") as failure:
        run_grid(cells, tmp_path, workers=1, timeout=1, console=QUIET)
    assert failure.value.results.keys() == {"well"}
    assert not runs(int((tmp_path / "sleeps/pid").read_text()))
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0"):
        run_grid(cells, tmp_path, timeout=0, console=QUIET)


SCRIPT = """
from archipel.experiments.grids import Cell, run_grid

def square(folder, x):
    return {"square": x * x}

CALL
"""


@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_runs_its_own_functions_in_processes(tmp_path, guarded):
    call = "print(run_grid([Cell(f'x{x}', square, {'x': x}) for x in (2, 3)], 'out', workers=2))"
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.replace("CALL", f"if __name__ == '__main__':\n    {call}" if guarded else call))
    for _ in range(1 + guarded):  # the second time, results are read
        done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
        if guarded:
            assert done.stdout == "{'x2': {'square': 4}, 'x3': {'square': 9}}\n", done.stderr
        else:
            assert "below `if __name__ == '__main__':`" in done.stderr
            assert done.returncode == 1
    if guarded:
        assert json.loads((tmp_path / "out/x2/result.json").read_text())["work"] == "mine.py:square"


def test_a_function_of_an_interactive_session_is_refused_before_anything_runs(tmp_path):
    lines = SCRIPT.replace("CALL", "run_grid([Cell('a', square, {'x': 2})], 'out', workers=2)")
    done = subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True)
    assert "Define it in a module, or give workers=1" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_time_left_is_an_even_share_or_the_longest_cell():
    assert time_left([], [], [1.0], 2) is None
    # 5 s a unit of cost: 4 waiting cells of 1 take 20 s over two workers
    assert time_left([(2.0, 10.0)], [], [1.0] * 4, 2) == 10.0
    # and one of 6 takes 30 s on any number of workers, less what it has run
    assert time_left([(2.0, 10.0)], [(6.0, 12.0)], [], 8) == 18.0
    assert time_left([(2.0, 10.0)], [(1.0, 99.0)], [], 1) == 0.0
