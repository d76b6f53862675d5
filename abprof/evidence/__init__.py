"""Why a row changed: what workers compiled, machine code, profilers, and the rules that name a cause."""
