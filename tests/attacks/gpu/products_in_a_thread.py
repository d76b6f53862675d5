"""Multiplies large matrices in a thread all the time: base's turns wait for it, and the GPU lowers its clock."""

import threading

started = []


def burn():
    with torch.cuda.stream(torch.cuda.Stream()):
        left = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
        while True:
            left @ left
            torch.cuda.current_stream().synchronize()


def run(x, w):
    if not started:
        started.append(threading.Thread(target=burn, daemon=True))
        started[0].start()
    return honest(x, w)
