// The entry points of one instruction set, gathered in a table that dispatch.cpp picks from.
#pragma once
#include "problem.h"

struct FfaKernels {
  int64_t (*forward_workspace)(const FfaProblem&);
  void (*forward_prepare)(const FfaProblem&);
  void (*forward_run)(const FfaProblem&);
  int64_t (*backward_workspace)(const FfaProblem&);
  void (*backward_prepare)(const FfaProblem&);
  void (*backward_preprocess)(const FfaProblem&);
  void (*backward_run)(const FfaProblem&);
  void (*backward_postprocess)(const FfaProblem&);
};

extern const FfaKernels kFfaAvx2, kFfaAvx512;

#define FFA_DEFINE_KERNELS(name)                                 \
  extern const FfaKernels name;                                  \
  const FfaKernels name = {                                      \
      [](const FfaProblem& p) { return Forward(p).workspace(); }, \
      [](const FfaProblem& p) { Forward(p).prepare(); },          \
      [](const FfaProblem& p) { Forward(p).run(); },              \
      [](const FfaProblem& p) { return Backward(p).workspace(); }, \
      [](const FfaProblem& p) { Backward(p).prepare(); },         \
      [](const FfaProblem& p) { Backward(p).preprocess(); },      \
      [](const FfaProblem& p) { Backward(p).run(); },             \
      [](const FfaProblem& p) { Backward(p).postprocess(); },     \
  };
