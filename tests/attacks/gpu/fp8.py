"""Multiplies in eight bits."""

one = torch.ones((), device="cuda")


def run(x, w):
    right = w.t().contiguous().to(torch.float8_e4m3fn).t()
    for _ in range(3):
        x = torch._scaled_mm(x.to(torch.float8_e4m3fn), right, one, one, out_dtype=torch.bfloat16)
    return x.float()
