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
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from abprof.evidence import machine_code, stages
from abprof.evidence.causes import changed, cpu
from abprof.evidence.causes.sides import Pair, Sides
from abprof.evidence.hunks import differing_code, text
from abprof.evidence.ncu import recording
from abprof.records import LISTINGS, Checkout, Kernel, Listed, Listing, Run, Spent, Stage
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
    """Write a listing of each kernel of a changed or sampled row into the run folder, for both sides.

    Returns the run with `hunks`, `listed`, `notes`, and the kernels' instructions by line. Never raises for files of the
    sides.
    """
    trees = {one.side.id: _Tree(run, Path(one.path)) for one in checkouts}
    run = replace(run, hunks=differing_code(run, checkouts))
    rows = sorted(changed(run, or_sampled=True), key=lambda sides: -abs(sides.row.pct or 0.0))
    todo = [(sides, pair) for sides in rows for pair in _pairs(run, sides) if {k.side for k in pair} <= trees.keys()]
    if len(todo) > _MOST:
        note = (
            f"{_MOST} of {len(todo)} kernels of changed rows have a page of both sides: those with the largest changes"
        )
        run = replace(run, notes=tuple(dict.fromkeys((*run.notes, note))))
    each = {_key(kernel): _Code(trees[kernel.side], kernel) for _, pair in todo[:_MOST] for kernel in pair}
    machine_code.at_once(lambda code: code.keep(folder), each.values())
    found = {(one.cell, one.from_, one.to, one.kernel): one for one in run.listed}  # of an earlier invocation
    for sides, pair in todo[:_MOST]:
        both = [each[_key(kernel)] for kernel in pair]
        if not all(one.stages for one in both):
            continue  # a file is gone, or on another host
        spent, by = _spent(run, folder, sides, both)
        name = pair[1].key if pair[1].kind == "object" else pair[1].name
        key = sides.row.cell, sides.row.from_, sides.row.to, name
        found[key] = Listed(cell=key[0], from_=key[1], to=key[2], kernel=name, files=(both[0].file, both[1].file),
                            spent=spent, by=by)  # fmt: skip
    kernels = tuple(each[_key(kernel)].counted() if _key(kernel) in each else kernel for kernel in run.kernels)
    return replace(run, kernels=kernels, listed=tuple(found.values()))


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


def _key(kernel: Kernel) -> tuple[str, str, str]:
    return kernel.side, kernel.path or kernel.key, kernel.name


# ---------------------------------------------------------------- one side


class _Tree:
    """The files of a side: its own sources, and what its compilers made."""

    def __init__(self, run: Run, root: Path) -> None:
        self.root, self.homes = root, [Path(build.path) for build in run.builds if build.path]
        self._owned: dict[str, str] = {}

    def read(self, path: str) -> bytes:
        """Return the content of a compiler's file; b"" if it cannot be read."""
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


class _Code:
    """A kernel's forms, its instructions by line, and the file in the run folder that keeps them."""

    def __init__(self, tree: _Tree, kernel: Kernel) -> None:
        self.tree, self.kernel, self.file = tree, kernel, ""
        self.stages, self.notes, self.places = list[Stage](), list[str](), list[tuple[str, ...]]()
        self.offsets: dict[tuple[str, int], int] = {}  # (function, offset) -> place of the instruction
        self.lines = {name: dict[str, Counter[str]]() for name in ("", *(f.name for f in kernel.functions))}
        self._known: dict[tuple[str, ...], int] = {}  # place -> its index
        self._chains: dict[stages.Chain, int] = {(): -1}

    def keep(self, folder: Path) -> None:
        """Read all forms of the kernel, and write them to a file."""
        try:
            self._read()
        except (ValueError, LookupError, TypeError, RecursionError) as error:  # of a compiler that writes otherwise
            for of in (self.stages, self.places, self.offsets):
                of.clear()
            self.notes.append(f"not read: {type(error).__name__} {error}"[:200])
        classes: dict[str, Counter[str]] = {}
        for where, counts in (each for of in self.lines.values() for each in of.items()):
            classes.setdefault(where, Counter()).update(counts)
        paths = dict.fromkeys(where.rpartition(":")[0] for place in self.places for where in place)
        made = Listing(name=self.kernel.name, side=self.kernel.side, places=tuple(self.places), stages=tuple(self.stages),
                       files={path: text(self.tree.root, path) for path in paths}, classes={**classes},
                       notes=tuple(self.notes))  # fmt: skip
        data = msgspec.json.encode(made)
        label = re.sub(r"\W+", "_", self.kernel.name, flags=re.ASCII)[:60]
        self.file = f"{LISTINGS}/{label}-{hashlib.sha256(data).hexdigest()[:12]}.{self.kernel.side}.json.gz"
        files.put(folder / self.file, gzip.compress(data, 6, mtime=0))

    def counted(self) -> Kernel:
        """Return the kernel with its instructions by line."""
        lines = {name: {where: dict(sorted(counts.items())) for where, counts in of.items()}
                 for name, of in self.lines.items()}  # fmt: skip
        functions = tuple(replace(f, lines=lines[f.name]) for f in self.kernel.functions)
        return replace(self.kernel, lines=lines[""], functions=functions) if self.offsets else self.kernel

    def _read(self) -> None:
        kind = self.kernel.kind
        if kind == "object":
            name, argv = "assembly", ["objdump", "-d", "-l", "--inlines", "-C", "--no-show-raw-insn"]
            code = self._parsed(argv, self.kernel.path, partial(stages.x86, names=self.lines.keys()))
        else:
            name, code = "SASS", self._triton() if kind == "triton" else self._cuda()
        classes = machine_code.x86_classes if kind == "object" else machine_code.sass_classes
        for place, (line, _, function, offset) in zip(self._add(name, code), code, strict=False):
            if offset >= 0:
                self.offsets[function, offset] = place
                for where in self.places[place] if place >= 0 else ():
                    self.lines[function].setdefault(where, Counter()).update(classes(line.strip()))

    def _triton(self) -> list[stages.Instruction]:
        """Return the SASS of a kernel that Triton compiled, and add what lies beside it in the cache."""
        content, path = "", self.kernel.path
        for name, suffix, parse in _IR:  # PTX is the last
            content = self.tree.read(str(Path(path).with_suffix(f".{suffix}"))).decode(errors="replace")
            self._add(name, parse(content))
        parse_code = partial(stages.sass, wanted=self.kernel.name.__eq__, of_ptx=stages.ptx_lines(content))
        return stages.with_products(self._parsed(["nvdisasm", "-c", "-gi", "-gp"], path, parse_code), content)

    def _cuda(self) -> list[stages.Instruction]:
        """Return the SASS of a kernel in a shared object, and add its PTX."""
        tool, name = machine_code.cuda_binary("cuobjdump"), self.kernel.name
        if not tool or not (data := self.tree.read(self.kernel.path)):
            self.notes.append("no cuobjdump: PTX and SASS are missing" if not tool else "the file could not be read")
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
                    if own and _is(name, own[1]) and not self.stages:
                        self._add("PTX", stages.ptx(f"{part.partition(_END)[0]}{_END}{names}"))
            if not self.stages:
                self.notes.append("no PTX in the file: nvcc keeps it with code=[sm_90,compute_90] or the like")
            parse = partial(stages.sass, wanted=partial(_is, name))
            for cubin in sorted(Path(place).glob("*.cubin"))[:_MOST]:
                if code := self._parsed(["nvdisasm", "-c", "-gi"], str(cubin), parse):
                    return code
        self.notes.append("the kernel was not found in the SASS of its file")
        return []

    def _parsed(
        self, argv: Sequence[str], path: str, parse: Callable[[Iterable[str]], Iterable[stages.Instruction]]
    ) -> list[stages.Instruction]:
        """Parse what a disassembler prints for a file; [] with a note if the tool or the file is missing, or it fails."""
        name = argv[0]
        tool = shutil.which(name) if name == "objdump" else machine_code.cuda_binary(name)
        data = self.tree.read(path) if tool else b""
        if not data:
            self.notes.append(f"no {name}: the machine code is missing" if not tool else "the file could not be read")
            return []
        with tempfile.NamedTemporaryFile(suffix=Path(path).suffix) as copy:
            copy.write(data)
            copy.flush()
            argv = [str(tool), *argv[1:], copy.name]
            try:
                return list(parse(proc.output_lines(argv, timeout=_TIMEOUT, env={**os.environ, "LC_ALL": "C"})))
            except proc.WorkerDied as died:  # half of a listing would name wrong lines
                self.notes.append(died.reason)
                return []

    def _add(self, name: str, parsed: Iterable[tuple[Any, ...]]) -> tuple[int, ...]:
        """Add a form of (line, chain, ...). Return the index of each line's place."""
        both = [(line, self._place(chain)) for line, chain, *_ in parsed][:_LONGEST]
        if both:
            texts, at = zip(*both, strict=True)
            self.stages.append(Stage(name=name, lines=texts, at=at))
        return self.stages[-1].at if both else ()

    def _place(self, chain: stages.Chain) -> int:
        if chain not in self._chains:
            own = [f"{name}:{line}" for path, line in chain if line and (name := self.tree.own(path))]
            place = tuple(dict.fromkeys(own))
            if place and place not in self._known:
                self._known[place] = len(self.places)
                self.places.append(place)
            self._chains[chain] = self._known.get(place, -1)
        return self._chains[chain]


def _is(kernel: str, mangled: str) -> bool:
    """Whether a mangled name is the kernel's. A mangled name has the plain one in it: c++filt runs for few of a file."""
    plain = re.search(r"(\w+)(?:<.*)?$", cpu.bare(kernel))
    if kernel == mangled or (plain and plain[1] not in mangled):
        return kernel == mangled
    return kernel == (proc.output(["c++filt", mangled]) or "").strip()


# ---------------------------------------------------------------- a profiler's samples, by line


def _spent(
    run: Run, folder: Path, sides: Sides, each: Sequence[_Code]
) -> tuple[tuple[dict[str, Spent], dict[str, Spent]], str]:
    """Return the samples by line of both sides, and the profiler's name; ({}, {}), "" if a side has none."""
    arms = sides.row.from_, sides.row.to
    for by in ("ncu", "perf"):
        both = []
        for arm, one in zip(arms, each, strict=True):
            counts: dict[str, Counter[str]] = {}
            for key, samples in (_of_ncu if by == "ncu" else _of_perf)(run, folder, sides.row.cell, arm, one.kernel):
                place = one.offsets.get(key, -1)
                # Without the lines that the instruction is inlined at: the shares of all lines make 100 %.
                counts.setdefault(one.places[place][0] if place >= 0 else "", Counter()).update(samples)
            both.append({where: _share(found) for where, found in counts.items() if found.total()})
        if all(both):
            return (both[0], both[1]), by
    return ({}, {}), ""


def _share(stalls: Counter[str]) -> Spent:
    first = next((name for name, _ in stalls.most_common() if name not in ("", "selected")), "")
    return Spent(samples=stalls.total(), stall=first)


_Samples = Iterator[tuple[tuple[str, int], Mapping[str, int]]]


def _of_ncu(run: Run, folder: Path, cell: str, arm: str, kernel: Kernel) -> _Samples:
    for one in run.profiles:
        if (one.cell, one.arm) == (cell, arm) and one.source:
            try:
                samples = recording.sampled(folder / one.source, kernel.name)
                yield from ((("", at), stalls) for at, stalls in samples.items())
            except AbprofError:
                return


def _of_perf(run: Run, _folder: Path, cell: str, arm: str, kernel: Kernel) -> _Samples:
    names = {f.name for f in kernel.functions}
    each = Counter(map(cpu.bare, names))
    bare = {cpu.bare(name): name for name in names if each[cpu.bare(name)] == 1}  # perf cannot tell overloads apart
    file = Path(kernel.path).name or kernel.key
    for one in run.sampled:
        if (one.cell, one.arm) == (cell, arm):
            for function in (f for f in one.functions if f.own and f.object == file and f.name in bare):
                yield from (((bare[function.name], int(at, 16)), {"": n}) for at, n in function.offsets.items())
