"""Helps stray_b: leaves processes behind that its stopped fork server cannot end, and that slow stray_b's base."""

import os, subprocess, sys

from abprof.worker.bench import Bench

STRAY = """
import mmap, os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.ftruncate(file, 2)
flag, (waits, wake) = mmap.mmap(file, 2), os.pipe()
for _ in range(16):
    if not os.fork():
        os.setsid()
        while os.read(waits, 1):
            while flag[:1] == b"g": pass
until = time.monotonic() + 400
while time.monotonic() < until:
    if flag[:1] == b"g":
        os.write(wake, bytes(16))
        while flag[:1] == b"g": time.sleep(0.002)
    flag[1] = 1
    time.sleep(0.003)
"""
run, made = honest, Bench.prepared


def prepared(self, request, inputs):
    if self.start.epoch and not done:
        done.append(1)
        subprocess.Popen([sys.executable, "-S", "-c", STRAY, f"{self.start.scratch}/target/flag"], env={}).wait()
        os.kill(os.getppid(), 19)
    return made(self, request, inputs)


done, Bench.prepared = [], prepared
