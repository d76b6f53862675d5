"""A C++ kernel, with a pass more over its output, and with a function that nothing calls."""

SOURCE = """
extern "C" void blend(const float *__restrict x, const float *__restrict y, float *__restrict z, long n) {
  for (long i = 0; i < n; ++i) {
    float a = x[i], b = y[i];
    for (int k = 0; k < 8; ++k) a = a * 0.5f + b * 0.25f;
    z[i] = a;
  }
}
"""
AGAIN = """
__attribute__((noinline)) void rescale(float *z, long n) {
  for (long i = 0; i < n; ++i) z[i] = z[i] * 3.0f;
  for (long i = 0; i < n; ++i) z[i] = z[i] / 3.0f;
}
"""
PASS = AGAIN + SOURCE.replace("z[i] = a;\n  }\n", "z[i] = a;\n  }\n  rescale(z, n);\n")
UNUSED = (
    SOURCE
    + """
extern "C" void unused_debug(float *z, const float *w, long n) {
  for (long i = 0; i < n; ++i) z[i] = z[i] * 3.0f + w[i];
  for (long i = 0; i < n; ++i) z[i] = z[i] / 3.0f;
}
"""
)
