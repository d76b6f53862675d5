// The C ABI: picks the instruction set by asking the processor, once per call. Plain x86-64 code only.
#include "kernels.h"

namespace {

const FfaKernels* pick(int32_t isa) { return isa == 2 ? &kFfaAvx512 : &kFfaAvx2; }

}  // namespace

#define FFA_EXPORT __attribute__((visibility("default")))

extern "C" {

// 2: AVX-512 (F, BW, DQ, VL), 1: AVX2 with FMA, 0: neither. Includes whether the system saves the wide registers.
FFA_EXPORT int32_t ffa_isa() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return 2;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
}

// So that the caller can tell a library whose FfaProblem is laid out differently.
FFA_EXPORT int64_t ffa_problem_bytes() { return sizeof(FfaProblem); }

FFA_EXPORT int64_t ffa_forward_workspace(const FfaProblem* p, int32_t isa) { return pick(isa)->forward_workspace(*p); }
FFA_EXPORT void ffa_forward_prepare(const FfaProblem* p, int32_t isa) { pick(isa)->forward_prepare(*p); }
FFA_EXPORT void ffa_forward_run(const FfaProblem* p, int32_t isa) { pick(isa)->forward_run(*p); }
FFA_EXPORT int64_t ffa_backward_workspace(const FfaProblem* p, int32_t isa) {
  return pick(isa)->backward_workspace(*p);
}
FFA_EXPORT void ffa_backward_prepare(const FfaProblem* p, int32_t isa) { pick(isa)->backward_prepare(*p); }
FFA_EXPORT void ffa_backward_preprocess(const FfaProblem* p, int32_t isa) { pick(isa)->backward_preprocess(*p); }
FFA_EXPORT void ffa_backward_run(const FfaProblem* p, int32_t isa) { pick(isa)->backward_run(*p); }
FFA_EXPORT void ffa_backward_postprocess(const FfaProblem* p, int32_t isa) { pick(isa)->backward_postprocess(*p); }
}
