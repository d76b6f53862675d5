import triton
import triton.language as tl

WORST = False
CONFIGS = [triton.Config({"BLOCK": 2048}, num_warps=8), triton.Config({"BLOCK": 32}, num_warps=1)]


def prune(configs, named_args, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] == 32] if WORST else configs


@triton.autotune(configs=CONFIGS, key=["n"], prune_configs_by={"early_config_prune": prune})
@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1.0, mask=at < n)


def job(x, y):
    chosen = CONFIGS[WORST]
    return add_one.fn, (triton.cdiv(x.numel(), chosen.kwargs["BLOCK"]),), (x, y, x.numel()), chosen.all_kwargs()


def run(x, y):
    add_one[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
