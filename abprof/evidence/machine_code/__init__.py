"""Machine code by content: which it is (elf.py), and what instructions it is made of (sass.py, x86.py)."""
