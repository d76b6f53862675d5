"""A real Ray cluster of several nodes on this machine, and a machine that can be switched off."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.ports import free_ports

NODE = "LAB_NODE"  # in the environment of every process of a node
_UP_WITHIN = 120.0


class Cluster:
    """A head without devices, and nodes that are started as a person starts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Path(tempfile.mkdtemp(prefix="abt-", dir="/tmp"))  # sockets' paths may be 107 characters long
        self.port, self.client = free_ports(2)
        self._marked = secrets.token_hex(8)  # another cluster of this machine has an n1 of its own
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        head = [f"--port={self.port}", f"--ray-client-server-port={self.client}", "--include-dashboard=false"]
        self._start("head", ["--head", *head, f"--temp-dir={self.home}", "--num-cpus=0"], {})
        self._until_there(1)
        _listening(self.client)

    @property
    def address(self) -> str:
        """Of its client server."""
        return f"127.0.0.1:{self.client}"

    def node(self, name: str, env: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Add one that may run a shard at a time. Ray gives each half a minute to start, so they start one after the other."""
        options = [f"--address=127.0.0.1:{self.port}", "--num-cpus=1", f"--resources={json.dumps({'abprof': 1})}"]
        options += [f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}"]
        self._start(name, options, env)
        self._until_there(len(self._started))

    def off(self, name: str) -> None:
        """The machine stops at once, with all its processes."""
        process = self._started.pop(name)
        _kill_all(self._mark(name), _below(process.pid))
        process.wait(timeout=30)

    def living(self, name: str, word: str) -> list[int]:
        return [process.pid for process in _processes(self._mark(name), word)]

    def free(self) -> bool:
        """Whether every device of every node is free."""
        code = "import ray; ray.init('auto', log_to_driver=False, logging_level='ERROR'); "
        code += "a, t = ray.available_resources(), ray.cluster_resources(); "
        code += "print(a.get('abprof') == t.get('abprof') and a.get('CPU') == t.get('CPU'))"
        env = {**os.environ, **self.environment, "RAY_ADDRESS": f"127.0.0.1:{self.port}"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout.strip().endswith("True")

    def close(self) -> None:
        """Nothing of it stays."""
        for name in list(self._started)[::-1]:
            self.off(name)
        shutil.rmtree(self.home, ignore_errors=True)

    def _mark(self, name: str) -> str:
        return f"{self._marked}-{name}"

    def _start(self, name: str, options: Sequence[str], env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *options]
        plain = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        log = (self.home / f"{name}.log").open("wb")
        self._started[name] = subprocess.Popen(
            command,
            env={**plain, **env, **self.environment, "RAY_TMPDIR": str(self.home), NODE: self._mark(name)},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()

    def _until_there(self, count: int) -> None:
        end = time.monotonic() + _UP_WITHIN
        while _alive(self.port, self.environment) < count:
            for name, process in self._started.items():
                assert process.poll() is None, (name, (self.home / f"{name}.log").read_text())
            assert time.monotonic() < end, "the cluster does not come up"
            time.sleep(0.2)


def _listening(port: int) -> None:
    end = time.monotonic() + _UP_WITHIN
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.2)
    raise AssertionError("the client server does not come up")


def _alive(port: int, env: Mapping[str, str]) -> int:
    """Nodes that the cluster's own books have as living."""
    code = f"from ray._raylet import GcsClient; c = GcsClient(address='127.0.0.1:{port}'); "
    code += "print(sum(n.state == 0 for n in c.get_all_node_info(timeout=5).values()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    last = done.stdout.strip().split("\n")[-1]
    return int(last) if done.returncode == 0 and last.isdigit() else 0


def _processes(mark: str, word: str = "") -> list[psutil.Process]:
    """Processes of a node whose command line has this word."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(NODE) == mark and word in " ".join(process.cmdline()):
                found.append(process)
    return found


def _below(pid: int) -> list[psutil.Process]:
    """Ray's servers write a title over their environment, so that they are found as children alone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _kill_all(mark: str, below: Sequence[psutil.Process]) -> None:
    for _ in range(100):
        found = _processes(mark)
        for one in (*below, *found):
            with contextlib.suppress(psutil.Error):
                one.kill()
        if not found and not psutil.wait_procs(below, timeout=5)[1]:
            return
        time.sleep(0.05)
    raise AssertionError(f"{mark} is not off: {_processes(mark)}")
