"""Slows base: processes that end before they are counted take the cores between its own turns."""

import mmap, os, subprocess, sys

from abprof.records import messages
from abprof.worker.bench import Bench

HOG = """
import mmap, os, sys, time
flag = mmap.mmap(int(sys.argv[1]), 4096)
while os.read(0, 1):
    while flag[0] == 1:
        if os.fork():
            os.wait()
            continue
        until = time.monotonic() + 0.1
        while flag[0] == 1 and time.monotonic() < until:
            for _ in range(5):
                if not os.fork():
                    os.setsid()
                    while flag[0] == 1 and time.process_time() < 0.005: pass
                    os._exit(0)
            for _ in range(5): os.wait()
        os._exit(0)
"""
real, prove, opened, helper = Bench.turn, Bench.prove, messages.Opened, []
run = honest


file = os.memfd_create("flag")
os.ftruncate(file, 4096)
flag = mmap.mmap(file, 4096)
helper[:] = (
    flag,
    subprocess.Popen([sys.executable, "-S", "-c", HOG, str(file)], stdin=subprocess.PIPE, pass_fds=(file,)),
)


def turn(self, request):
    helper[0][0] = 0
    made = real(self, request)
    go()
    return made


def proved(self, request):
    try:
        return prove(self, request)
    finally:
        go()


def go():
    helper[0][0] = 1
    os.write(helper[1].stdin.fileno(), b"g")


Bench.turn, Bench.prove = turn, proved
messages.Opened = lambda call, *more: opened(1e5, *more)  # long turns
