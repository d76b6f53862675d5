"""Keep what compilers made of a changed row's kernels, with the line of source of each instruction, in the run folder."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from abprof.evidence import machine_code, stages
from abprof.evidence.causes import changed, cpu
from abprof.evidence.causes.sides import Pair, Sides
from abprof.evidence.hunks import differing_code, text
from abprof.evidence.ncu import recording
from abprof.records import LISTINGS, Checkout, Kernel, Lines, Listed, Listing, Run, Spent, Stage
from abprof.records.errors import AbprofError
from abprof.system import doorway, files
from abprof.system import processes as proc

_MOST = 40  # kernels of changed rows, the largest change first
_LONGEST = 40_000  # lines of a stage
_LARGEST = 64 << 20  # bytes of a file
_TIMEOUT = 120.0  # seconds of a disassembler
_IR: tuple[tuple[str, str, Callable[[str], stages.Parsed]], ...] = (
    ("TTIR", "ttir", stages.mlir), ("TTGIR", "ttgir", stages.mlir), ("LLVM IR", "llir", stages.llvm),
    ("PTX", "ptx", stages.ptx),
)  # fmt: skip
_SOURCES_BUT = ("/site-packages/", "/dist-packages/", "/usr/include/", "/usr/lib/")
_ENTRY, _END = re.compile(r"^(?=\s*(?:\.(?:visible|weak)\s+)?\.entry\s)", re.MULTILINE), "\n}\n"  # of a kernel in PTX
replace = msgspec.structs.replace


def keep_listings(run: Run, checkouts: Sequence[Checkout], folder: Path) -> Run:
    """Write a listing of each kernel of a changed row into the run folder, for both sides.

    Returns the run with `hunks`, `listed`, `notes`, and the kernels' instructions by line. Never raises for files of the sides.
    """
    makers = {one.side.id: _Maker(run, one.side.id, Path(one.path), folder) for one in checkouts}
    run = replace(run, hunks=differing_code(run, checkouts))
    rows = sorted(changed(run), key=lambda sides: -abs(sides.row.pct or 0.0))
    todo = [(sides, pair) for sides in rows for pair in _pairs(run, sides) if {k.side for k in pair} <= makers.keys()]
    if len(todo) > _MOST:
        note = (
            f"{_MOST} of {len(todo)} kernels of changed rows have a page of both sides: those with the largest changes"
        )
        run = replace(run, notes=tuple(dict.fromkeys((*run.notes, note))))
    each = {(kernel.side, *_key(kernel)): kernel for _, pair in todo[:_MOST] for kernel in pair}
    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2)) as pool:
        list(pool.map(lambda kernel: makers[kernel.side].made(kernel), each.values()))
    found = {(one.cell, one.from_, one.to, one.kernel): one for one in run.listed}  # of an earlier invocation
    for sides, pair in todo[:_MOST]:
        made = [makers[kernel.side].made(kernel) for kernel in pair]
        if not all(one.listing.stages for one in made):
            continue  # a file is gone, or on another host
        spent, by = _spent(run, folder, sides, [kernel.name for kernel in pair], made)
        name = pair[1].key if pair[1].kind == "object" else pair[1].name
        key = sides.row.cell, sides.row.from_, sides.row.to, name
        found[key] = Listed(cell=key[0], from_=key[1], to=key[2], kernel=name, files=(made[0].file, made[1].file),
                            spent=spent, by=by)  # fmt: skip
    kernels = {id(kernel): one.kernel for maker in makers.values() for kernel, one in maker.known.values()}
    return replace(
        run, kernels=tuple(kernels.get(id(kernel), kernel) for kernel in run.kernels), listed=tuple(found.values())
    )


def _pairs(run: Run, sides: Sides) -> Iterator[tuple[Kernel, Kernel]]:
    sampled = {one.arm for one in run.profiles if one.cell == sides.row.cell and one.source}

    def worth(pair: Pair) -> bool:
        return pair.same_code is False or (pair.same_code is True and {sides.row.from_, sides.row.to} <= sampled)

    if sides.on_gpu:
        for pair in filter(worth, sides.pairs):
            if pair.before.kernel and pair.after.kernel:
                yield pair.before.kernel, pair.after.kernel
    else:
        yield from (pair for pair in sides.objects if pair[0].code != pair[1].code and pair[0].functions)


def _key(kernel: Kernel) -> tuple[str, str]:
    return kernel.path or kernel.key, kernel.name


# ---------------------------------------------------------------- one side


class _Made(msgspec.Struct):
    """A kernel with its instructions by line; its listing and where that lies; (function, offset) -> place."""

    kernel: Kernel
    listing: Listing
    file: str
    offsets: dict[tuple[str, int], int]


class _Maker:
    def __init__(self, run: Run, side: str, root: Path, folder: Path) -> None:
        self.side, self.root, self.folder = side, root, folder
        self.homes = [Path(build.path) for build in run.builds if build.path]
        self.known: dict[tuple[str, str], tuple[Kernel, _Made]] = {}
        self._owned: dict[str, str] = {}

    def made(self, kernel: Kernel) -> _Made:
        key = _key(kernel)
        if key not in self.known:
            try:
                made = self._make(kernel)
            except (ValueError, LookupError, TypeError, RecursionError) as error:  # of a compiler that writes otherwise
                made = self._written(kernel, _Listing(self), [f"not read: {type(error).__name__} {error}"[:200]])
            self.known[key] = kernel, made
        return self.known[key][1]

    def _make(self, kernel: Kernel) -> _Made:
        made, notes, offsets = _Listing(self), list[str](), dict[tuple[str, int], int]()
        lines, each = dict[str, Counter[str]](), {f.name: dict[str, Counter[str]]() for f in kernel.functions}
        if kernel.kind == "object":
            stage, argv = "assembly", ["objdump", "-d", "-l", "--inlines", "-C", "--no-show-raw-insn"]
            own = self._parsed(argv, kernel.path, notes, partial(stages.x86, names=each.keys()))
            made.add(stage, ((line, chain) for line, chain, *_ in own))
            for place, (line, _, name, offset) in zip(made.at(stage), own, strict=False):
                offsets[name, offset] = place
                if offset >= 0:
                    made.count(place, machine_code.x86_classes(line.strip()), each[name])
        else:
            stage, code = "SASS", (self._triton if kernel.kind == "triton" else self._cuda)(kernel, made, notes)
            made.add(stage, code)
            inside = [(place, line) for place, (line, _) in zip(made.at(stage), code, strict=False) if line[:1] == " "]
            for number, (place, line) in enumerate(inside):
                offsets["", 16 * number] = place
                made.count(place, machine_code.sass_classes(line), lines)
        functions = tuple(replace(f, lines=_plain(each.get(f.name, {}))) for f in kernel.functions)
        counted = replace(kernel, lines=_plain(lines), functions=functions) if made.at(stage) else kernel
        return self._written(counted, made, notes, offsets)

    def _written(
        self, kernel: Kernel, of: _Listing, notes: Sequence[str], offsets: dict[tuple[str, int], int] | None = None
    ) -> _Made:
        listing = of.listing(kernel, notes)
        data = msgspec.json.encode(listing)
        label = re.sub(r"\W+", "_", kernel.name, flags=re.ASCII)[:60]
        file = f"{LISTINGS}/{label}-{hashlib.sha256(data).hexdigest()[:12]}.{self.side}.json.gz"
        files.put(self.folder / file, gzip.compress(data, 6, mtime=0))
        return _Made(kernel, listing, file, offsets or {})

    def _triton(self, kernel: Kernel, made: _Listing, notes: list[str]) -> list[tuple[str, stages.Chain]]:
        """Return the SASS of a kernel that Triton compiled, and add what lies beside it in the cache."""
        content = ""
        for name, suffix, parse in _IR:  # PTX is the last
            content = self._read(str(Path(kernel.path).with_suffix(f".{suffix}"))).decode(errors="replace")
            made.add(name, parse(content))
        parse = partial(stages.sass, wanted=kernel.name.__eq__, of_ptx=stages.ptx_lines(content))
        return self._parsed(["nvdisasm", "-c", "-gi", "-gp"], kernel.path, notes, parse)

    def _cuda(self, kernel: Kernel, made: _Listing, notes: list[str]) -> list[tuple[str, stages.Chain]]:
        """Return the SASS of a kernel in a shared object, and add its PTX."""
        tool = machine_code.cuda_binary("cuobjdump")
        if not tool or not (data := self._read(kernel.path)):
            notes.append("no cuobjdump: PTX and SASS are missing" if not tool else "the file could not be read")
            return []
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / "object.so"
            copy.write_bytes(data)
            for what in ("-xptx", "-xelf"):
                proc.output([tool, what, "all", copy.name], timeout=_TIMEOUT, cwd=place)
            for file in sorted(Path(place).glob("*.ptx"))[:_MOST]:
                whole = file.read_text(errors="replace")
                names = "\n".join(line for line in whole.splitlines() if line.lstrip().startswith(".file"))
                for part in _ENTRY.split(whole)[1:]:
                    own = re.search(r"\.entry\s+([\w$]+)", part)
                    if own and _is(kernel.name, own[1]) and not made.at("PTX"):
                        made.add("PTX", stages.ptx(f"{part.partition(_END)[0]}{_END}{names}"))
            parse = partial(stages.sass, wanted=partial(_is, kernel.name))
            for cubin in sorted(Path(place).glob("*.cubin"))[:_MOST]:
                if code := self._parsed(["nvdisasm", "-c", "-gi"], str(cubin), notes, parse):
                    return code
        notes.append("the kernel was not found in the SASS of its file")
        return []

    def _parsed(
        self, argv: Sequence[str], path: str, notes: list[str], parse: Callable[[Iterable[str]], Iterable[Any]]
    ) -> list[Any]:
        """Parse what a disassembler prints for a file; [] with a note if the tool or the file is missing, or it fails."""
        name = argv[0]
        tool = shutil.which(name) if name == "objdump" else machine_code.cuda_binary(name)
        data = self._read(path) if tool else b""
        if not data:
            notes.append(f"no {name}: the machine code is missing" if not tool else "the file could not be read")
            return []
        with tempfile.NamedTemporaryFile(suffix=Path(path).suffix) as copy:
            copy.write(data)
            copy.flush()
            argv = [str(tool), *argv[1:], copy.name]
            try:
                return list(parse(proc.output_lines(argv, timeout=_TIMEOUT, env={**os.environ, "LC_ALL": "C"})))
            except proc.WorkerDied as died:  # half of a listing would name wrong lines
                notes.append(died.reason)
                return []

    def _read(self, path: str) -> bytes:
        file = Path(path)
        home = next((one for one in self.homes if file.is_relative_to(one)), None)
        try:
            # A worker names the file: a link's target could be any file of the user, and pages show it.
            return doorway.read(file if home else file.parent.resolve() / file.name, _LARGEST, home)
        except OSError:
            return b""

    def own(self, path: str) -> str:
        """Return a compiler's path relative to the side's tree; "" for files of others.

        A cached build names the worktree of the run that built, so the longest suffix that the tree has counts.
        """
        if path not in self._owned:
            whole, found = Path(os.path.normpath(path)), ""  # `build/../src/a.cpp`, from a compiler that ran in build/
            if whole.is_relative_to(self.root):
                found = str(whole.relative_to(self.root))
            elif not any(part in path for part in _SOURCES_BUT):
                parts = whole.parts
                ends = (Path(*parts[at:]) for at in range(whole.is_absolute(), max(len(parts) - 1, 1)))
                found = next((str(end) for end in ends if ".." not in end.parts and (self.root / end).is_file()), "")
            self._owned[path] = found
        return self._owned[path]


class _Listing:
    """A listing while it is made."""

    def __init__(self, of: _Maker) -> None:
        self._of, self._stages = of, list[Stage]()
        self._places: dict[tuple[str, ...], int] = {}
        self._wheres: list[tuple[str, ...]] = []  # the keys of `_places`
        self._chains: dict[stages.Chain, int] = {(): -1}

    def add(self, name: str, parsed: Iterable[tuple[str, stages.Chain]]) -> None:
        both = [(line, self._place(chain)) for line, chain in parsed][:_LONGEST]
        if both:
            texts, at = zip(*both, strict=True)
            self._stages.append(Stage(name=name, lines=texts, at=at))

    def _place(self, chain: stages.Chain) -> int:
        if chain not in self._chains:
            own = [f"{name}:{line}" for path, line in chain if line and (name := self._of.own(path))]
            place = tuple(dict.fromkeys(own))
            if place and place not in self._places:
                self._places[place] = len(self._wheres)
                self._wheres.append(place)
            self._chains[chain] = self._places.get(place, -1)
        return self._chains[chain]

    def at(self, stage: str) -> tuple[int, ...]:
        return next((one.at for one in self._stages if one.name == stage), ())

    def count(self, place: int, classes: Iterable[str], lines: dict[str, Counter[str]]) -> None:
        for where in self._wheres[place] if place >= 0 else ():
            lines.setdefault(where, Counter()).update(classes)

    def listing(self, kernel: Kernel, notes: Sequence[str]) -> Listing:
        paths = dict.fromkeys(where.rpartition(":")[0] for place in self._places for where in place)
        return Listing(name=kernel.name, side=kernel.side, places=tuple(self._places), stages=tuple(self._stages),
                       files={path: text(self._of.root, path) for path in paths}, notes=tuple(notes))  # fmt: skip


def _plain(lines: Mapping[str, Counter[str]]) -> Lines:
    return {where: dict(sorted(counts.items())) for where, counts in lines.items()}


def _is(kernel: str, mangled: str) -> bool:
    """Whether a mangled name is the kernel's. A mangled name has the plain one in it: c++filt runs for few of a file."""
    plain = re.search(r"(\w+)(?:<.*)?$", cpu.bare(kernel))
    if kernel == mangled or (plain and plain[1] not in mangled):
        return kernel == mangled
    return kernel == (proc.output(["c++filt", mangled]) or "").strip()


# ---------------------------------------------------------------- a profiler's samples, by line


def _spent(
    run: Run, folder: Path, sides: Sides, names: Sequence[str], made: Sequence[_Made]
) -> tuple[tuple[dict[str, Spent], dict[str, Spent]], str]:
    """Return the samples by line of both sides, and the profiler's name; ({}, {}), "" if a side has none."""
    arms = sides.row.from_, sides.row.to
    for by in ("ncu", "perf"):
        both = []
        for arm, name, one in zip(arms, names, made, strict=True):
            counts: dict[str, Counter[str]] = {}
            for key, samples in (_of_ncu if by == "ncu" else _of_perf)(run, folder, sides.row.cell, arm, name, one):
                place = one.offsets.get(key, -1)
                # Without the lines that the instruction is inlined at: the shares of all lines make 100 %.
                counts.setdefault(one.listing.places[place][0] if place >= 0 else "", Counter()).update(samples)
            both.append({where: _share(found) for where, found in counts.items() if found.total()})
        if all(both):
            return (both[0], both[1]), by
    return ({}, {}), ""


def _share(stalls: Counter[str]) -> Spent:
    first = next((name for name, _ in stalls.most_common() if name not in ("", "selected")), "")
    return Spent(samples=stalls.total(), stall=first)


_Samples = Iterator[tuple[tuple[str, int], Mapping[str, int]]]


def _of_ncu(run: Run, folder: Path, cell: str, arm: str, kernel: str, _made: _Made) -> _Samples:
    for one in run.profiles:
        if (one.cell, one.arm) == (cell, arm) and one.source:
            try:
                yield from ((("", at), stalls) for at, stalls in recording.sampled(folder / one.source, kernel).items())
            except AbprofError:
                return


def _of_perf(run: Run, _folder: Path, cell: str, arm: str, _kernel: str, made: _Made) -> _Samples:
    names = {f.name for f in made.kernel.functions}
    each = Counter(map(cpu.bare, names))
    bare = {cpu.bare(name): name for name in names if each[cpu.bare(name)] == 1}  # perf cannot tell overloads apart
    file = Path(made.kernel.path).name or made.kernel.key
    for one in run.sampled:
        if (one.cell, one.arm) == (cell, arm):
            for function in (f for f in one.functions if f.own and f.object == file and f.name in bare):
                yield from (((bare[function.name], int(at, 16)), {"": n}) for at, n in function.offsets.items())
