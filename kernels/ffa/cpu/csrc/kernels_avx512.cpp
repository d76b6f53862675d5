// Compiled with -mavx512f/bw/dq/vl; nothing in here may run before dispatch.cpp has asked the processor.
#include "simd_avx512.h"

#include "backward.h"
#include "kernels.h"

FFA_DEFINE_KERNELS(kFfaAvx512)
