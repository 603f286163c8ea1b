"""A lab's life and death: nothing of it stays, whoever is killed when; and this machine's clock is never touched."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankclock.errors import HostError, UserError
from rankclock.lab import Lab, Scenario, load_scenario
from rankclock.lab.build import library_path
from rankclock.lab.events import EventPlayer
from rankclock.lab.kernel import has_sys_time
from rankclock.lab.registry import kept_labs

pytestmark = pytest.mark.lab

S = 10**9
SOURCE = Path(__file__).parents[2] / "src"
PYTHONPATH = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])

# A lab with a daemon-like process in each node and one in the harness's own hands; says what it does as it does it.
HARNESS = """
import sys, time
from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario, load_scenario
def node(i):
    return {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]}
nodes = [node(i) for i in (1, 2, 3)]
cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "life", "nodes": nodes})
scenario = Scenario.of(cluster, links=[{"node": "n1", "delay_ns": 1000}])
print("starting", flush=True)
with Lab.up(scenario) as lab:
    print("up", flush=True)
    for i in (1, 2, 3):
        lab.spawn(f"n{i}", ["sh", "-c", "sleep 1000 & setsid sleep 1001 & exec sleep 1002"])
        lab.install(f"n{i}", {"/etc/chrony/chrony.conf": b"x"})
    print("busy", flush=True)
    time.sleep(1000)
"""

# Becomes the parent of every orphan below it, kills one process of the lab at a given time, waits until nobody is left.
WATCHER = """
import ctypes, os, signal, subprocess, sys, time
whom, delay_s, harness = sys.argv[1], float(sys.argv[2]), sys.argv[3]
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
def children(pid):
    try:
        return [int(child) for child in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        return []
def below(pid):
    return [d for child in children(pid) for d in (child, *below(child))]
harness = subprocess.Popen([sys.executable, "-c", harness], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
harness.stdout.readline()
time.sleep(delay_s)
line = [harness.pid, *below(harness.pid)]
seen = len(line)
victim = {"harness": 0, "outer": 1, "inner": 2}[whom]
os.kill(line[min(victim, len(line) - 1)], signal.SIGKILL)
if whom != "harness":
    time.sleep(0.1)
    os.kill(harness.pid, signal.SIGKILL)
deadline = time.monotonic() + 10
while True:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError:
        print("gone", seen)
        break
    if time.monotonic() > deadline:
        left = below(os.getpid())
        print("left", [open(f"/proc/{p}/cmdline").read() for p in left])
        for p in left: os.kill(p, signal.SIGKILL)
        break
    time.sleep(0.01)
"""


def traces() -> dict[str, object]:
    """What a lab could leave on this machine: interfaces, mounts, sockets, files in the usual places."""
    folders = [Path(name) for name in ("/tmp", "/dev/shm", "/run", "/run/netns", "/run/user/0")]
    sockets = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    return {
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "sockets": sorted(path for path in sockets if "rankclock" in path),
        "files": sorted(
            str(path) for folder in folders if folder.is_dir() for path in folder.iterdir() if "rankclock" in path.name
        ),
    }


@pytest.mark.parametrize(
    "whom", ["harness", pytest.param("outer", marks=pytest.mark.slow), pytest.param("inner", marks=pytest.mark.slow)]
)
def test_nothing_is_left_when_one_of_a_labs_processes_is_killed_at_any_of_ten_points(
    whom: str, until: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    library_path()  # compiled before: a killed compiler would be another test
    before = traces()
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    seen = []
    for i in range(10):
        argv = [sys.executable, "-c", WATCHER, whom, str(0.004 + 0.04 * i), HARNESS]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.startswith("gone"), (i, done.stdout, done.stderr)
        seen.append(int(done.stdout.split()[1]))
    until(lambda: traces() == before, 10, "nothing of it is left on this machine")
    assert min(seen) < max(seen), "the points lie in different stages of its life"
    with capsys.disabled():
        print(f"\nkilled the {whom}: processes that lived at each point: {seen}")


def test_interrupt_from_the_keyboard_ends_the_lab_in_order_and_in_silence() -> None:
    waits = '    print("busy", flush=True)\n    time.sleep(1000)'
    caught = waits.replace("    ", "        ")
    assert waits in HARNESS
    script = HARNESS.replace(waits, f"    try:\n{caught}\n    except KeyboardInterrupt: print('ending')")
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, env=environment, text=True, stdout=-1, stderr=-1, start_new_session=True) as harness:
        assert harness.stdout
        while harness.stdout.readline() not in ("busy\n", ""):
            pass
        os.killpg(harness.pid, signal.SIGINT)
        out, error = harness.communicate(timeout=20)
    assert (harness.returncode, out, error) == (0, "ending\n", "")


def test_lab_ends_with_its_context_and_says_so_to_those_who_still_hold_it(
    flat: Callable[..., Scenario], until: Callable[..., None]
) -> None:
    with Lab.up(flat(2)) as lab:
        process = lab.spawn("n1", ["sh", "-c", "echo hello; exec sleep 1000"])
        until(lambda: process.log_text() == "hello\n", 5, "it runs")
        assert lab.alive()
    assert process.poll() == -9
    assert process.log_text() == "hello\n", "what it said stays readable"
    assert not Path(f"/proc/{process.pid}").exists()
    with pytest.raises(HostError, match="the lab is gone"):
        lab.run("n1", ["true"], timeout_s=5)
    lab.down()


def test_node_whose_first_process_is_killed_takes_its_processes_along_and_the_others_live(
    flat: Callable[..., Scenario], until: Callable[..., None]
) -> None:
    with Lab.up(flat(2)) as lab:
        process = lab.spawn("n1", ["sleep", "1000"])
        parent = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, 9)
        until(lambda: process.poll() == -9, 5, "its processes are gone")
        with pytest.raises(HostError, match="the lab is gone"):
            lab.run("n1", ["true"], timeout_s=5)
        assert lab.run("n2", ["echo", "alive"], timeout_s=5).stdout == "alive\n"


def test_lab_started_in_a_thread_outlives_the_thread(flat: Callable[..., Scenario]) -> None:
    labs: list[Lab] = []
    thread = threading.Thread(target=lambda: labs.append(Lab.up(flat(1))))
    thread.start()
    thread.join()
    try:
        assert labs[0].run("n1", ["echo", "here"], timeout_s=5).stdout == "here\n"
    finally:
        labs[0].down()


class Timex(ctypes.Structure):
    _fields_ = (("modes", ctypes.c_uint), ("longs", ctypes.c_long * 25))


def host_adjtimex() -> tuple[int, ...]:
    """freq, tick, status, tai as the host's kernel has them."""
    timex = Timex()
    ctypes.CDLL("libc.so.6").adjtimex(ctypes.byref(timex))
    raw = bytes(timex)
    return tuple(int.from_bytes(raw[at : at + size], "little", signed=True) for at, size in
                 ((16, 8), (88, 8), (40, 4), (160, 4)))  # fmt: skip


def test_hosts_clock_is_not_touched_by_a_lab_that_steps_and_slews_its_own(
    flat: Callable[..., Scenario], until: Callable[..., None]
) -> None:
    def real_minus_raw_ns() -> int:
        raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        return time.clock_gettime_ns(time.CLOCK_REALTIME) - raw

    before, apart_ns = host_adjtimex(), real_minus_raw_ns()
    script = (
        "import ctypes, time\ntime.clock_settime_ns(time.CLOCK_REALTIME, 10**18)\n"
        "t = (ctypes.c_byte * 208)(); t[0] = 2; t[17] = 100\nassert ctypes.CDLL(None).adjtimex(t) >= 0\n"
        "bypass = (ctypes.c_byte * 208)(); bypass[0] = 2; bypass[17] = 100\n"
        "print('bypassed', ctypes.CDLL('libc.so.6').adjtimex(bypass))"
    )
    with Lab.up(flat(2, clocks={"n1": {"offset_ns": 20 * S, "drift_ppb": 90_000}})) as lab:
        done = lab.run("n1", [sys.executable, "-c", script], timeout_s=10)
        assert done.stdout == "bypassed -1\n", "past the preload, without CAP_SYS_TIME, the kernel refuses"
        assert lab.clock("n1").ntp().freq == 25_600
        assert lab.clock("n1").read().real_ns < 1.1e18
    assert host_adjtimex() == before
    assert abs(real_minus_raw_ns() - apart_ns) < 1_000_000


def _python_for(identity: list[str]) -> str | None:
    for python in (sys.executable, "/usr/bin/python3"):
        script = (
            "import subprocess as s, sys\ns.run([sys.executable, '-c', ''], check=True)\nassert sys.version > '3.11'"
        )
        probe = [*identity, python, "-c", script]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return python
    return None


ROOTLESS = """
import os, sys, time
from rankclock.cluster.model import Cluster
from rankclock.errors import HostError
from rankclock.lab import Lab, Scenario, load_scenario
def node(i):
    return {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]}
nodes = [node(i) for i in (1, 2)]
cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "rootless", "nodes": nodes})
scenario = Scenario.of(cluster, links=[{"node": "n2", "delay_ns": 50_000}], clocks={"n2": {"offset_ns": 3 * 10**9}})
assert os.getuid() != 0
try:
    with Lab.up(scenario) as lab:
        client = "server n1 iburst minpoll -1 maxpoll 1\\nmakestep 0.1 3\\n"
        for node, text in (("n1", "local stratum 1\\n"), ("n2", client)):
            text += "allow\\npidfile /run/chrony/chronyd.pid\\ndriftfile /var/lib/chrony/drift\\n"
            lab.install(node, {"/etc/chrony/chrony.conf": text.encode()})
            lab.spawn(node, [sys.argv[1], "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"])
        deadline = time.monotonic() + 30
        while abs(lab.true_offset_ns("n2", "n1")) > 1_000_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        print(lab.run("n2", ["id", "-u"], timeout_s=5).stdout.strip(), abs(lab.true_offset_ns("n2", "n1")) < 1_000_000)
except HostError as error:
    print("refused:", error)
"""


def _as_ordinary_user(script: str, *before: str) -> subprocess.CompletedProcess[str]:
    if os.getuid() != 0:
        pytest.skip("this test runs as an ordinary user already: so do all the others")
    identity = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    python = _python_for(identity)
    if python is None:
        pytest.skip("no Python 3.11 that an ordinary user may run")
    packages = [str(SOURCE), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    chronyd = shutil.which("chronyd", path="/usr/sbin:" + os.environ["PATH"]) or "/usr/sbin/chronyd"
    argv = [*before, *identity, python, "-c", script, chronyd]
    with tempfile.TemporaryDirectory() as home:  # not pytest's own: that is closed to other users
        os.chown(home, 65534, 65534)
        environment |= {"HOME": home, "XDG_CACHE_HOME": home}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=90, check=False, cwd="/")


def test_ordinary_user_has_the_same_lab(daemon: Callable[[str], Path]) -> None:
    daemon("chronyd")
    done = _as_ordinary_user(ROOTLESS)
    if "refused: the lab could not start: this machine lets ordinary users make no user namespaces" in done.stdout:
        pytest.skip(done.stdout)
    assert done.stdout == "0 True\n", done.stdout + done.stderr


def test_ordinary_user_without_user_namespaces_gets_one_line_that_says_what_is_missing() -> None:
    forbid = textwrap.dedent(
        f"""
        import os, sys
        sys.path.insert(0, {str(SOURCE)!r})
        from rankclock.lab import init, kernel
        init._new_user_namespace(init._whole_maps(), deny_setgroups=False)
        open("/proc/sys/user/max_user_namespaces", "w").write("0")
        os.execvp(sys.argv[1], sys.argv[1:])
        """
    )
    done = _as_ordinary_user(ROOTLESS, sys.executable, "-c", forbid)
    assert done.stdout.startswith("refused: the lab could not start: this machine lets ordinary users make no user"), (
        done
    )
    assert done.stdout.count("\n") == 1


def test_root_without_user_namespaces_still_has_a_lab_without_cap_sys_time() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root")
    script = textwrap.dedent(
        f"""
        import os, subprocess, sys
        sys.path.insert(0, {str(SOURCE)!r})
        from rankclock.lab import init, kernel
        init._new_user_namespace(init._whole_maps(), deny_setgroups=False)
        open("/proc/sys/user/max_user_namespaces", "w").write("0")
        from rankclock.cluster.model import Cluster
        from rankclock.lab import Lab, Scenario, load_scenario
        nodes = [{{"name": "n1", "nics": [{{"name": "eth0", "address": "10.77.0.1/24", "segment": "lan"}}]}}]
        cluster = Cluster.model_validate({{"schema": "rankclock-cluster/1", "name": "x", "nodes": nodes}})
        with Lab.up(Scenario.of(cluster)) as lab:
            print(lab.run("n1", ["sh", "-c", "grep ^Cap /proc/self/status"], timeout_s=5).stdout)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    masks = [int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("Cap")]
    assert len(masks) == 5, done.stderr
    assert not any(mask >> 25 & 1 for mask in masks)


def test_this_test_process_may_hold_cap_sys_time_and_its_labs_still_may_not(flat: Callable[..., Scenario]) -> None:
    holds = has_sys_time()
    with Lab.up(flat(1)) as lab:
        mask = lab.run("n1", ["grep", "CapBnd", "/proc/self/status"], timeout_s=5).stdout.split()[1]
    assert int(mask, 16) >> 25 & 1 == 0
    assert has_sys_time() == holds, "only the lab's processes have given it up"


def test_machine_without_a_compiler_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(HostError, match="none of gcc, cc, clang found; install gcc"):
        library_path()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(HostError, match="could not build"):
        library_path()
    assert list((tmp_path / "rankclock").iterdir()) == []


# ---- labs in the background ----


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(f"/tmp/rankclock-test-{os.getpid()}")  # short: a socket's path has at most 107 bytes
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def rankclock(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rankclock", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def scenario_file(tmp_path: Path, flat: Callable[..., Scenario]) -> Path:
    scenario = flat(2, clocks={"n2": {"offset_ns": 3 * S}}, events=[
        {"at_s": 0, "node": "n2", "action": "step", "by_ns": 7 * S},
        {"at_s": 0.1, "node": "n1", "action": "stop", "service": "nothing"},
    ])  # fmt: skip
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(scenario.model_dump(mode="json", by_alias=True)))
    return file


def test_lab_in_the_background_is_started_listed_entered_and_ended_by_commands(
    runtime: Path, scenario_file: Path, until: Callable[..., None]
) -> None:
    started = rankclock("lab", "up", str(scenario_file), "--name", "one", "--json")
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["nodes"] == ["n1", "n2"]
    try:
        events = runtime / "rankclock-labs/one/log/events.log"
        until(lambda: "0.1 s: stop on n1" in events.read_text(), 10, "its events are played")
        assert "service 'nothing' does not run on n1" in events.read_text()
        twice = rankclock("lab", "up", str(scenario_file), "--name", "one")
        assert (twice.returncode, twice.stderr.count("\n")) == (2, 1)
        listed = json.loads(rankclock("lab", "list", "--clocks", "--json").stdout)["labs"]
        assert [lab["name"] for lab in listed] == ["one"]
        assert abs(listed[0]["nodes"][1]["true_offset_ns"] - 10 * S) < S // 100, "3 s at the start, 7 s by the event"
        inside = rankclock("lab", "shell", "n2", "--", "sh", "-c", "hostname; exit 5")
        assert (inside.stdout, inside.returncode) == ("n2\n", 5)
        unknown = rankclock("lab", "shell", "n9")
        assert (unknown.returncode, unknown.stderr) == (2, "rankclock: the lab has no node 'n9'\n")
    finally:
        ended = rankclock("lab", "down")
    assert (ended.returncode, ended.stdout) == (0, "ended: one\n")
    assert list(runtime.iterdir()) == []
    assert rankclock("lab", "down").returncode == 2


def test_shell_in_a_node_has_a_terminal_with_job_control_and_gives_its_exit_code(
    runtime: Path, scenario_file: Path, until: Callable[..., None]
) -> None:
    Lab.up(load_scenario(scenario_file), tied=False, name="three").down()
    script = "import sys; from rankclock.lab import Lab; from rankclock.lab.terminal import run_here\n"
    script += "sys.exit(run_here(Lab.attach('three'), 'n2', ['/bin/sh']))"
    master, slave = os.openpty()
    seen = ""

    def shows(text: str) -> bool:
        nonlocal seen
        with contextlib.suppress(OSError):  # EIO: the shell has ended
            while select.select([master], [], [], 0)[0]:
                seen += os.read(master, 4096).decode()
        return text in seen

    shell = subprocess.Popen([sys.executable, "-c", script], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        os.write(master, b"echo on $(hostname) $(test -t 0 && echo terminal)\n")
        until(lambda: shows("on n2 terminal"), 10, "the shell answers")
        os.write(master, b"sleep 60\n")
        until(lambda: b"sleep\x0060" in b" ".join(_command_lines()), 10, "it sleeps")
        os.write(master, b"\x03")
        os.write(master, b"echo interrupted; exit 7\n")
        until(lambda: shows("interrupted\r\n"), 10, "Ctrl-C reached the program in the node")
        assert shell.wait(10) == 7
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
        Lab.attach("three").end()


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def test_events_happen_at_their_time_and_one_that_cannot_is_kept_with_its_reason(flat: Callable[..., Scenario]) -> None:
    events = [
        {"at_s": 0.10, "node": "n2", "action": "drift", "drift_ppb": 90_000},
        {"at_s": 0.0, "node": "n2", "action": "step", "by_ns": -5 * S},
        {"at_s": 0.0, "node": "n2", "action": "phc-step", "by_ns": 9 * S},
        {"at_s": 0.05, "node": "n2", "action": "phc-freeze"},
        {"at_s": 0.05, "node": "n1", "action": "link", "set": {"delay_ns": 700}, "up": False},
        {"at_s": 0.05, "node": "n1", "action": "kill", "service": "chronyd"},
    ]
    said: list[str] = []
    with Lab.up(flat(2, events=events)) as lab:
        player = EventPlayer(lab, said.append)
        player.start()
        assert player.wait(10)
        assert [event.action for _, event in player.happened] == ["step", "phc-step", "phc-freeze", "link", "drift"]
        assert [reason for _, reason in player.failed] == ["service 'chronyd' does not run on n1: running there: none"]
        assert len(said) == 6
        assert abs(lab.true_offset_ns("n2", "n1") + 5 * S) < S // 1000
        now_ns = time.monotonic_ns()
        assert lab.clock("n2").at_host(now_ns + S).raw_ns - lab.clock("n2").at_host(now_ns).raw_ns - S == 90_000
        assert lab.phc("n2").ntp().frozen
        assert lab.link("n1").settings.delay_ns == 700
        assert lab.run("n1", ["cat", "/sys/class/net/eth0/carrier"], timeout_s=5).stdout == "0\n"


@pytest.mark.parametrize("victim", ["outer", "inner"])
def test_background_lab_whose_process_was_killed_leaves_nothing_once_somebody_looks(
    victim: str, runtime: Path, scenario_file: Path
) -> None:
    Lab.up(load_scenario(scenario_file), tied=False, name="two").down()
    outer = json.loads((runtime / "rankclock-labs/two/lab.json").read_text())["pid"]
    inner = int(Path(f"/proc/{outer}/task/{outer}/children").read_text())
    os.kill(outer if victim == "outer" else inner, 9)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{inner}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kept_labs() == []
    assert list((runtime / "rankclock-labs").iterdir()) == []


def test_folder_of_labs_that_others_could_read_is_refused(runtime: Path, scenario_file: Path) -> None:
    (runtime / "rankclock-labs").mkdir(mode=0o755)
    (runtime / "rankclock-labs").chmod(0o755)
    with pytest.raises(HostError, match="not a private folder of yours"):
        Lab.up(load_scenario(scenario_file), tied=False)


@pytest.mark.parametrize("name", ["../x", "", "a" * 60, "a/b"])
def test_name_that_is_no_plain_word_is_refused(name: str, runtime: Path, flat: Callable[..., Scenario]) -> None:
    with pytest.raises(UserError, match="cannot name a lab"):
        Lab.up(flat(1), tied=False, name=name or " ")
