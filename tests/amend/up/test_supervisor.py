"""A supervisor of small programs, in a process of its own: what `amend up` would need too long to show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amend.up import process as processes
from amend.up.process import Process
from tests.endurance.fleet import children, gone
from tests.servers import die_with_parent

pytestmark = pytest.mark.timing

SCRIPT = """
import os, sys
from pathlib import Path
from amend.up import process
from amend.up.supervisor import Supervisor
process.MIN_RESTART_SECONDS = 0.05
folder, stop_timeout, *commands = sys.argv[1:]
made = []
for i, command in enumerate(commands):
    log = Path(folder, f"{i}.log")
    made.append(process.Process(f"part{i}", ["sh", "-c", command], log, os.environ, stop_timeout=int(stop_timeout)))
lock = os.open(folder + "/lock", os.O_RDWR | os.O_CREAT)
supervisor = Supervisor([[each] for each in made], lock, lambda name, text: print(f"{name}: {text}", flush=True))
with supervisor.supervise():
    code = supervisor.run(lambda: True)
sys.exit(code)
"""
STUBBORN = "trap '' TERM; sleep 60 & echo $! > {folder}/child; wait; wait; wait"


def restore_hangup() -> None:
    """Undo what `nohup make test` does: a supervisor that inherits an ignored SIGHUP keeps ignoring it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    die_with_parent()


class Small:
    """A supervisor of shell commands."""

    def __init__(self, folder: Path, *commands: str, stop_timeout: int = 1) -> None:
        self.folder, self.out = folder, folder / "out"
        given = [command.format(folder=folder) for command in commands]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(folder), str(stop_timeout), *given],
                stdout=out,
                stderr=out,
                preexec_fn=restore_hangup,
            )

    def wait_until(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end, self.out.read_text()
            time.sleep(0.02)

    def number_in(self, file: str) -> int:
        """The process that a command has written to a file."""
        self.wait_until(lambda: (self.folder / file).exists() and (self.folder / file).read_text().strip())
        return int((self.folder / file).read_text())

    def says(self, text: str) -> None:
        self.wait_until(lambda: text in self.out.read_text())


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., Small]]:
    made: list[Small] = []

    def start(*commands: str, **options: int) -> Small:
        made.append(Small(tmp_path, *commands, **options))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_a_process_that_keeps_dying_is_reported_with_its_log_and_the_others_continue(
    small: Callable[..., Small],
) -> None:
    up = small("echo no such luck; exit 3", "echo $$ > {folder}/well; exec sleep 60")
    well = up.number_in("well")
    up.says("part0: failed 3 times in a row. Last lines of its log:\npart0:   no such luck\n")
    pauses = [line.split()[-4:-2] for line in up.out.read_text().splitlines() if "exited with status 3" in line]
    assert pauses[:3] == [["0.05", "s"], ["0.1", "s"], ["0.2", "s"]]
    assert not gone(well)


def test_children_of_a_dead_process_are_killed(small: Callable[..., Small]) -> None:
    up = small("sleep 60 & echo $! > {folder}/child; echo $$ > {folder}/parent; wait")
    child = up.number_in("child")
    os.kill(up.number_in("parent"), signal.SIGKILL)
    up.says("part0: was killed by signal 9; restarting")
    up.wait_until(lambda: gone(child))


def test_a_process_that_does_not_stop_in_time_is_killed_with_its_children(small: Callable[..., Small]) -> None:
    up = small(STUBBORN)
    child = up.number_in("child")
    up.process.terminate()
    up.says("part0: did not stop within 1 s; killed")
    assert up.process.wait(60) == 0
    up.wait_until(lambda: gone(child))


def test_processes_are_stopped_in_order(small: Callable[..., Small]) -> None:
    command = "trap 'date +%s%N > {folder}/{i}; exit' TERM; echo $$ > {folder}/ready{i}; sleep 60 & wait"
    up = small(*(command.replace("{i}", str(i)) for i in range(3)))
    for i in range(3):
        up.number_in(f"ready{i}")
    up.process.send_signal(signal.SIGHUP)
    assert up.process.wait(60) == 0
    moments = [up.number_in(str(i)) for i in range(3)]
    assert moments == sorted(moments)


def test_a_second_signal_ends_everything_at_once(small: Callable[..., Small]) -> None:
    up = small("sleep 60", STUBBORN, stop_timeout=60)
    child = up.number_in("child")
    up.process.send_signal(signal.SIGINT)
    up.process.send_signal(signal.SIGTERM)  # an echo of the first
    up.says("part0: stopped")
    assert up.process.poll() is None

    def interrupt() -> bool:
        """Send signals until one counts, because it comes long enough after the first."""
        if "stopped: everything was killed" not in up.out.read_text():
            up.process.send_signal(signal.SIGINT)
            return False
        return True

    up.wait_until(interrupt)
    assert up.process.wait(60) == 1
    assert "did not stop" not in up.out.read_text()
    up.wait_until(lambda: gone(child))


def test_a_killed_supervisor_leaves_nothing_even_if_its_guard_was_killed_before(small: Callable[..., Small]) -> None:
    up = small(STUBBORN)
    child = up.number_in("child")
    [guard] = guards(up)
    os.kill(guard, signal.SIGKILL)
    up.wait_until(lambda: guards(up) not in ([], [guard]))
    up.process.kill()
    up.wait_until(lambda: gone(child))


def guards(up: Small) -> list[int]:
    return [p for p in children(up.process.pid) if b"guard.py" in Path(f"/proc/{p}/cmdline").read_bytes()]


def test_a_log_is_kept_short_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_LOG_BYTES", 1000)
    log = tmp_path / "log"
    part = Process(
        "chatty", ["sh", "-c", "head -c 5000 /dev/zero; read -r go < go; echo later"], log, os.environ, tmp_path
    )
    os.mkfifo(tmp_path / "go")
    part.start()
    assert part.process is not None
    while log.stat().st_size < 5000:
        time.sleep(0.01)
    part.limit_log()
    assert (log.stat().st_size, (tmp_path / "log.1").stat().st_size) == (0, 5000)
    (tmp_path / "go").write_text("go\n")
    part.process.wait(10)
    assert log.read_text() == "later\n"
    part.rotate_log()
    assert (tmp_path / "log.1").read_text() == "later\n"
    assert not log.exists()
