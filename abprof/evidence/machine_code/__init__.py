"""Machine code of what was measured: read each file once (`reader`), count instructions (`disassembly`), per run (`kernels`)."""
