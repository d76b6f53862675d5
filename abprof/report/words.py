"""How numbers and outcomes are said: one wording for the terminal, the log, Markdown and HTML.

A percentage is a change of time, is said with a word ("2.1 % slower") and never without its interval, or the words
that say why there is none. What was not recorded is "not recorded", never a number.
"""

from __future__ import annotations

from abprof.records import Comparison, Status, Value, Verdict
from abprof.records.visible import visible

NOT_RECORDED = "not recorded"
NO_INTERVAL = "no interval"

VERDICTS: dict[Verdict, str] = {
    "broken": "an arm failed, or its output is wrong: there is no speed to report",
    "slower": "the whole interval lies beyond the threshold, on the slow side",
    "unclear": "the interval is too wide for any other verdict, or an arm is missing",
    "faster": "the whole interval lies beyond the threshold, on the fast side",
    "slight": "the sign is certain, the size is inside the threshold",
    "same": "the whole interval lies inside the margin: shown to be equal, not merely not shown to differ",
}
MARKS: dict[Verdict, str] = {
    "broken": "✖", "slower": "▲", "unclear": "?", "faster": "▼", "slight": "△", "same": "=",
}  # fmt: skip
STATUSES: dict[Status, str] = {
    "ok": "ran and passed its check",
    "wrong": "the output does not match the reference",
    "unsupported": "this case cannot run here, and that is nobody's fault",
    "missing": "this side has no such function, variant or package",
    "build_failed": "the kernel package did not build",
    "oom": "out of memory",
    "timeout": "no answer in time",
    "crash": "an exception, or the worker died",
    "identical": "everything loaded is byte for byte the same on both sides: not measured again",
}
_REASONS = {
    "identical_code": "identical code",
    "waived": "waived",
    "both": "failed on both sides",
    "one_clock": "at one clock",
    "clock": "the device's clock differed between the sides, and at one clock they compare otherwise",
    "power": "the power-limited mode disagrees on the sign",
    "timer": "the clock outside its process contradicts the timer inside",
    "budget": "the time budget ended first",
    "not_pursued": "no epochs are spent on it for its own sake",
    "epochs": "still open after the last planned epoch",
    "interrupted": "interrupted",
    "not_measured": "not measured",
    "precision": "decided, but not yet as precise as asked for",
    "quick_nothing_large": "one epoch: nothing large seen",
    "quick_worth_confirming": "one epoch: worth confirming",
    "chance": "among this many rows it may be chance",
    "proof": "what it loaded is not its own",
}
_BOTH = {"unsupported": "not supported on either side", "missing": "missing on both sides"}
_ARMS = ("base", "target", "peer", "side", "control", "first", "second")


def reason(code: str) -> str:
    """A reason code in plain words; a bare status is the target's. Codes that are not known are shown as they are."""
    if code in _REASONS:
        return _REASONS[code]
    arm, _, what = code.partition("_")
    if arm in _ARMS and what:
        return f"{arm}: {_REASONS['proof'] if what == 'proof' else status(what)}"
    return status(clean(code))


def reasons(comparison: Comparison) -> str:
    """The comparison's reasons, joined, each once."""
    said = [
        _BOTH[code] if comparison.verdict == "unclear" and code in _BOTH else reason(code)
        for code in comparison.reasons
    ]
    return "; ".join(dict.fromkeys(said))


def status(name: str) -> str:
    """A status as words in a sentence: `build_failed` is "build failed"."""
    return {"oom": "out of memory", "wrong": "wrong output"}.get(name, name.replace("_", " "))


def signed(pct: float, places: int = 1) -> str:
    """`2.1 % slower`, `6.2 % faster`, `0.0 % change` when nothing is left after rounding."""
    text = f"{abs(pct):.{places}f}"
    if not float(text):
        return f"{text} % change"
    return f"{text} % {'slower' if pct > 0 else 'faster'}"


def interval(low: float, high: float, places: int = 1) -> str:
    """`1.9 to 2.4 % slower`, or `0.2 % faster to 0.4 % slower` when zero is inside."""
    if low >= 0:
        return f"{low:.{places}f} to {high:.{places}f} % slower"
    if high <= 0:
        return f"{-high:.{places}f} to {-low:.{places}f} % faster"
    return f"{-low:.{places}f} % faster to {high:.{places}f} % slower"


def places(comparison: Comparison) -> int:
    """Decimals worth showing: two when the interval is narrower than half a per cent."""
    low, high = comparison.low_pct, comparison.high_pct
    return 2 if low is not None and high is not None and high - low < 0.5 else 1


def bounds(comparison: Comparison) -> str:
    """The interval in words, or why there is none."""
    if comparison.low_pct is not None and comparison.high_pct is not None:
        return interval(comparison.low_pct, comparison.high_pct, places(comparison))
    if comparison.pct is None:
        return ""
    return f"{NO_INTERVAL} from {plural(comparison.epochs, 'epoch')}"


def change(comparison: Comparison) -> str:
    """`2.1 % slower (95 % interval: 1.9 to 2.4 % slower)`, or why there is no number."""
    if comparison.pct is None:
        return reasons(comparison) or NOT_RECORDED
    known = comparison.low_pct is not None and comparison.high_pct is not None
    text = f"95 % interval: {bounds(comparison)}" if known else bounds(comparison)
    return f"{signed(comparison.pct, places(comparison))} ({text})"


def chance(comparison: Comparison) -> bool:
    """A changed row that false-discovery control over the run's rows leaves out."""
    return comparison.verdict in ("slower", "faster") and not comparison.discovery


def verdict(comparison: Comparison) -> str:
    """The verdict with what qualifies it: `same (identical code on both sides)`, `unclear (the time budget ...)`."""
    why = "; ".join(filter(None, (reasons(comparison), reason("chance") if chance(comparison) else "")))
    if comparison.certifiable_pct is not None:
        smallest = f"a margin of {comparison.certifiable_pct:.1f} % could have been certified"
        why = f"{why}; {smallest}" if why else smallest
    return f"{comparison.verdict} ({why})" if why else comparison.verdict


def duration(ns: float | None) -> str:
    """A time with four significant digits and a unit a person reads: `3.586 ms`, `41.20 µs`."""
    if ns is None:
        return NOT_RECORDED
    ns = float(f"{ns:.4g}")  # before the unit is chosen: 1.000 ms, not 1000 µs
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size:
            return f"{_four(ns / size)} {unit}"
    return f"{_four(ns)} ns"


def span(low: float, high: float) -> str:
    """`3.583 to 3.590 ms`, the unit once when it is the same."""
    first, last = duration(low), duration(high)
    same = first.split()[-1] == last.split()[-1]
    return f"{first.split()[0] if same else first} to {last}"


def rate(value: float | None) -> str:
    """TFLOP/s or GB/s with four significant digits."""
    return NOT_RECORDED if value is None else _four(value)


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return NOT_RECORDED
    for width, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= width:
            return f"{count / width:.1f} {unit}"
    return f"{count:.0f} B"


def fact(value: Value) -> str:
    """What a workload said of a case: a number with four significant digits, a text as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else clean(value)


def plural(count: int, one: str, many: str = "") -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def clean(text: object, limit: int = 300) -> str:
    """Foreign text on one line: control, bidirectional and other invisible characters as U+FFFD, then cut."""
    line = " ".join(visible(str(text)).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _four(value: float) -> str:
    """Four significant digits, without an exponent where it can be helped: 613.2, 3.586, 41.20, 12345."""
    text = f"{value:#.4g}"
    return f"{value:.0f}" if "e+" in text else text.rstrip(".")
