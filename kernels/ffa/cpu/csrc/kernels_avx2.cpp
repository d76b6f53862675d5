// Compiled with -mavx2 -mfma; nothing in here may run before dispatch.cpp has asked the processor.
#include "simd_avx2.h"

#include "backward.h"
#include "kernels.h"

FFA_DEFINE_KERNELS(kFfaAvx2)
