"""How a function is called, built and imported: the call with a guess for each argument, and the table of abprof.toml."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from abprof.extras.init.conventions import Known, known
from abprof.extras.init.repository import Candidate, Found
from abprof.extras.init.source import Module, Parameter, Use
from abprof.records import Record
from abprof.records.options import PackageEntry

_SCALARS = (  # a parameter's name, or its annotation, -> a value that is likely to be accepted
    (r"(variance_)?eps(ilon)?", "1e-6"),
    (r"(dim|axis)", "-1"),
    (r"(is_)?causal|training|return_\w+|use_\w+|keepdim|inplace|in_place|transpose\w*|has_\w+", "False"),
    (r"(dropout(_p)?|p_dropout|offset)", "0.0"),
    (r"(sm_|softmax_|attn_)?scale|alpha|temperature|gain", "1.0"),
    (r"(block|chunk|tile|group)_?(size)?(_\w+)?", "64"),
    (r"seed", "0"),
    (r"reduction", '"mean"'),
)
_BY_ANNOTATION = (("bool", "False"), ("int", "1"), ("float", "1.0"), ("str", '""'))
_TENSOR_NAMES = re.compile(
    r"[a-z]|[A-Z]|[a-z]\d|[A-Z]\d|x_?\w?|inp(ut)?s?|out(put)?s?|self|other|tensor|query|key|value|weights?|bias|residual|gate|up|logits|"
    r"target|labels?|hidden\w*|mat\d?|lhs|rhs|src|dst|source|scores?|mask|gamma|beta|cos|sin|w\d?|data|arr(ay)?|vec\w*|states?"
)
_INDEX = re.compile(
    r"targets?|labels?|ind(ex|ices)|idx|\w*_ids?|\w*_idx|\w*_ind(ex|ices)|positions?|offsets?|cu_seqlens\w*"
)
_PER_WIDTH = re.compile(r"weights?|w|gamma|beta|bias|rms_w\w*|ln_w\w*|norm_w\w*|W|B|scale|shift")
_OUT = re.compile(r"out|output|o|y|c|C|O|Y|dst|result|res|out_\w+|\w+_out")
_GENERIC = {
    0: ("rows", "width"),
    1: ("n",),
    2: ("rows", "width"),
    3: ("batch", "seqlen", "width"),
    4: ("batch", "heads", "seqlen", "head_dim"),
}
_RESERVED = {"dtype", "direction", "arm", "case", "device"}
_OURS = {"case", "compare", "import_module", "inputs", "kernel", "Op", "torch", "variant"}  # names that a workload uses
_ANYWHERE = {"bool", "float", "int", "torch"}  # names that mean in a workload what they mean in any file


class Argument(Record, frozen=True, kw_only=True):
    """One argument of the call."""

    name: str
    local: str  # a variable of the workload's for it
    shape: tuple[str, ...] | None = None  # a tensor's axes, digits for a fixed extent; None: no tensor
    index: bool = False  # of integers below the first tensor's last extent
    out: bool = False  # what the function writes to: allocated, and not an input
    value: str = ""  # what is written for one that is no tensor
    guessed: str = ""  # what of it is a guess
    placed: bool = False  # only by its position


class Called(Record, frozen=True, kw_only=True):
    """A whole call."""

    arguments: tuple[Argument, ...]
    reference: str = ""  # in plain torch, of the tensors' variables
    assumed: tuple[str, ...] = ()  # what the reference takes for a default that only the function's own file knows
    left_out: tuple[str, ...] = ()  # parameters that keep their defaults
    meant: dict[str, str] = {}  # axis -> what it is where functions of this name are known

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of all tensors, in the order they come up."""
        found = (axis for one in self.arguments for axis in one.shape or () if not axis.isdigit())
        return tuple(dict.fromkeys(found))


def called(one: Candidate) -> Called:
    """How a candidate is called for a first time: what has no default, and what its meaning needs."""
    meaning = known(one.called)
    chosen = _chosen(one, meaning)
    tensors = [p for p in chosen if _is_tensor(one, p, first=p is chosen[0])]
    out = next(
        (p for p in reversed(tensors) if not one.function.returns and len(tensors) > 1 and _OUT.fullmatch(p.name)), None
    )
    given = [p for p in tensors if p is not out]
    if meaning and len(given) != len(meaning.shapes):
        meaning = None
    alike: dict[str, str] = {}
    shapes = _shapes(one, given, meaning, alike)
    made = []
    for p in chosen:
        local = unused(p.name, {other.name for other in one.function.parameters if other is not p})
        argument = Argument(name=p.name, local=local, placed=p.placed)
        if p is out:
            more = {"shape": shapes[given[0].name][0], "out": True, "guessed": "the shape"}
        elif p in given:
            shape, sure = shapes[p.name]
            told = "Tensor" in p.annotation or one.function.uses.get(p.name, Use()).tensor
            guessed = "" if sure and told else "the shape" if told else "that it is a tensor, and its shape"
            index = bool(_INDEX.fullmatch(p.name)) or "Long" in p.annotation
            more = {"shape": shape, "index": index, "guessed": guessed}
        else:
            more = {"value": _value(p, meaning, shapes), "guessed": "the value"}
        made.append(msgspec.structs.replace(argument, **more))
    left = [p for p in one.function.parameters if not p.rest and p not in chosen]
    text, assumed = _reference(meaning, given, made, left) if meaning else ("", ())
    return Called(
        arguments=tuple(made),
        reference=text,
        assumed=assumed,
        left_out=tuple(f"{p.name}={p.default}" for p in left),
        meant={_axis(mine): general for general, mine in alike.items()},
    )


def _chosen(one: Candidate, meaning: Known | None) -> list[Parameter]:
    """Parameters without a default; of those with one the tensors that the meaning is of, as long as it lacks any."""
    required = [p for p in one.function.parameters if p.default is None and not p.rest]
    tensors = sum(_is_tensor(one, p, first=p is required[0]) for p in required)
    lacking = (len(meaning.shapes) if meaning else 1) - tensors
    more = [p for p in one.function.parameters if p.default == "None" and _is_tensor(one, p, first=False)][
        : max(0, lacking)
    ]
    placed = [one.positional or p.placed for p in one.function.parameters]
    last = max((i for i, p in enumerate(one.function.parameters) if placed[i] and p in [*required, *more]), default=-1)
    return [
        p
        for i, p in enumerate(one.function.parameters)
        if not p.rest and (p in required or p in more or (placed[i] and i < last))
    ]


def _is_tensor(one: Candidate, p: Parameter, *, first: bool) -> bool:
    if "Tensor" in p.annotation:
        return "list" not in p.annotation.lower() and "tuple" not in p.annotation.lower()
    if p.annotation not in {"", "Any", "typing.Any"}:
        return False
    if p.default not in {None, "None"}:
        return False
    if one.function.uses.get(p.name, Use()).tensor:
        return True
    if any(re.fullmatch(pattern, p.name) for pattern, _ in _SCALARS):
        return False
    return first or bool(_TENSOR_NAMES.fullmatch(p.name) or _INDEX.fullmatch(p.name) or _PER_WIDTH.fullmatch(p.name))


def _value(p: Parameter, meaning: Known | None, shapes: Mapping[str, tuple[tuple[str, ...], bool]]) -> str:
    if p.default is not None and _stands_alone(p.default):
        return p.default
    if p.name in {"normalized_shape", "hidden_size", "n_cols"} and shapes:
        axis = f'case["{next(iter(shapes.values()))[0][-1]}"]'
        return f"({axis},)" if p.name == "normalized_shape" else axis
    for pattern, value in (*(meaning.scalars if meaning else ()), *_SCALARS):
        if re.fullmatch(pattern, p.name):
            return value
    for word, value in _BY_ANNOTATION:
        if re.fullmatch(rf"{word}|Optional\[{word}\]|{word} \| None", p.annotation):
            return value
    return "None"


def _reference(
    meaning: Known, given: Sequence[Parameter], made: Sequence[Argument], left: Sequence[Parameter]
) -> tuple[str, tuple[str, ...]]:
    """The meaning's text with this call's names: its scalars as they are passed, or as they are by default; and what was
    taken for defaults that cannot be read."""
    passed = {one.name: one.value for one in made if one.shape is None} | {p.name: p.default or "" for p in left}
    scalars, assumed = {}, []
    for pattern, default in meaning.scalars:
        names = [name for name in passed if re.fullmatch(pattern, name)]
        value = passed[names[0]] if names else default
        if not _stands_alone(value):
            assumed.append(f"{names[0]}={value} is taken for {default}")
            value = default
        value = value if re.fullmatch(r"[-+.\w]+", value) else f"({value})"
        scalars[pattern.split("|")[0].removeprefix("sm_")] = default if value == "None" else value
    local = {one.name: one.local for one in made}
    return meaning.text.format(*(local[p.name] for p in given), **scalars), tuple(assumed)


def _stands_alone(text: str) -> bool:
    """Whether an expression means the same in another file."""
    names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    return names <= _ANYWHERE


def unused(name: str, taken: Collection[str]) -> str:
    """A variable's name like this one that hides neither the workload's own names nor those that are taken."""
    while name in _OURS or name in taken:
        name += "_"
    return name


# ---------------------------------------------------------------- shapes


def _shapes(
    one: Candidate, given: Sequence[Parameter], meaning: Known | None, alike: dict[str, str]
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Tensor -> its axes, and whether the code says all of them. `alike` is filled: the meaning's name of a dimension
    -> the code's."""
    made: dict[str, tuple[tuple[str, ...], bool]] = {}
    for at, p in enumerate(given):
        use = one.function.uses.get(p.name, Use())
        usual = meaning.shapes[at] if meaning else ()
        first = made[given[0].name][0] if at else ()
        said = _said(use, len(usual))
        equal = dict(_asserted_equal(one, p.name, made))
        rank = use.ndim or (max(said) + 1 if said and not usual else 0) or len(usual) or _usual_rank(p, first)
        names = []
        for dim in range(rank):
            mine = said.get(dim) or equal.get(dim)
            general = usual[dim] if dim < len(usual) and len(usual) == rank else ""
            if general:
                alike.setdefault(general, mine or general)
            # The code's word, but for a vector's length: `n_rows` of the targets is the logits' `BT`.
            meant = alike.get(general, "")
            names.append(mine if mine and (rank > 1 or not meant) else meant or _filled(p, dim, rank, first))
        sure = bool(use.ndim) and all(dim in said or dim in equal for dim in range(rank))
        made[p.name] = (tuple(_axis(name) for name in names), sure)
    return made


def _said(use: Use, usual: int) -> dict[int, str]:
    rank = use.ndim or usual
    placed = {(at + rank if at < 0 else at): name for at, name in use.dims if at >= 0 or rank}
    return {at: name for at, name in placed.items() if at >= 0 and (not rank or at < rank)}


def _asserted_equal(
    one: Candidate, name: str, made: Mapping[str, tuple[tuple[str, ...], bool]]
) -> Iterator[tuple[int, str]]:
    for left, right in one.function.same:
        for mine, other in ((left, right), (right, left)):
            if mine[0] == name and other[0] in made and -len(made[other[0]][0]) <= other[1] < len(made[other[0]][0]):
                yield mine[1], made[other[0]][0][other[1]]


def _usual_rank(p: Parameter, first: Sequence[str]) -> int:
    if not first:
        return 4 if re.fullmatch(r"q|query|Q", p.name) else 2
    if _PER_WIDTH.fullmatch(p.name):
        return 1
    return max(1, len(first) - 1) if _INDEX.fullmatch(p.name) else len(first)


def _filled(p: Parameter, dim: int, rank: int, first: Sequence[str]) -> str:
    """A name for a dimension that nothing is said of."""
    if first and rank == 1 and _PER_WIDTH.fullmatch(p.name):
        return first[-1]
    if first and rank == len(first):
        return first[dim]
    if first and rank < len(first):
        return first[dim] if _INDEX.fullmatch(p.name) else first[len(first) - rank + dim]
    generic = _GENERIC.get(rank) or tuple(f"d{i}" for i in range(rank))
    return generic[dim]


def _axis(name: str) -> str:
    if name.isdigit():
        return name
    plain = re.sub(r"\W|^(?=\d)", "_", name)
    return f"{plain}_" if keyword.iskeyword(plain) or plain in _RESERVED else plain


# ---------------------------------------------------------------- the package

_BUILD_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in")
_NATIVE = ("csrc", "include", "cpp", "cuda", "src/csrc")


class Proposal(Record, frozen=True, kw_only=True):
    """What would be written, and what a person should know of it."""

    kernel: str  # the kernel package's name
    entry: PackageEntry | None  # its table in abprof.toml; None: found by the conventional layout
    why: dict[str, str]  # key of the table -> why it has that value, where it is a guess
    workload: str  # name
    access: str  # how `prepare` comes by the function: "" is kernel.NAME, else the module to import it from (".rows": inside)
    candidate: Candidate
    call: Called
    notes: tuple[str, ...] = ()
    cuda: bool = False  # its build needs CUDA's compiler


class Place(Record, frozen=True, kw_only=True):
    """Where a file's code is imported from."""

    package: str  # the top package's import name, or a single file's stem
    path: str  # its folder, or the file
    module: str  # the file's own import name; "" for a single file, relative (".rows") in kernels/
    single: bool = False
    conventional: bool = False  # kernels/NAME


def propose(found: Found, one: Candidate) -> Proposal:
    """What abprof needs to measure this candidate."""
    place = place_of(found, found.modules[one.module])
    entry, why = (None, {}) if place.conventional else _entry(found, place)
    return Proposal(
        kernel=place.package.rpartition(".")[2],
        entry=entry,
        why=why,
        workload=re.sub(r"\W", "_", one.called.removesuffix(".apply")).strip("_") or "first",
        access="" if _at_front(found, one, place) else place.module,
        candidate=one,
        call=called(one),
        notes=tuple(_notes(found, one, place)),
        cuda=found.project.cuda,
    )


def _at_front(found: Found, one: Candidate, place: Place) -> bool:
    """Whether `package.NAME` is this function: `__init__.py` exports it, and no other file defines the same name."""
    front, name = f"{place.path}/__init__.py", one.called.partition(".")[0]
    if place.single or one.module == front:
        return True
    same = [
        path
        for path, module in found.modules.items()
        if path.startswith(f"{place.path}/") and (name in module.functions or name in module.forwards)
    ]
    return front in found.modules and name in found.modules[front].exports and same == [one.module]


def place_of(found: Found, module: Module) -> Place:
    """The import name of a file: as far up as there is an __init__.py, or up to a folder that import names start from."""
    path = PurePosixPath(module.path)
    if _conventional(found, path):
        name = path.parts[1].removesuffix(".py")
        inside = ".".join(("", *path.with_suffix("").parts[2:])).removesuffix(".__init__")
        folder = f"kernels/{name}" if len(path.parts) > 2 else module.path
        return Place(package=name, path=folder, module=inside, single=len(path.parts) == 2, conventional=True)
    top = path.parent
    while str(top) != "." and f"{top}/__init__.py" in found.files:
        top = top.parent
    if top == path.parent and not _in_namespace(found, module):
        return Place(package=path.stem, path=module.path, module="", single=True)
    root = next((r for r in found.project.roots if not r or str(top) == r or str(top).startswith(f"{r}/")), "")
    inner = path.relative_to(root) if root else path
    module_name = ".".join(inner.with_suffix("").parts).removesuffix(".__init__")
    step = path.relative_to(top).parts[0] if top != path.parent else ""
    home = top / step if step else path.parent
    package = ".".join((home.relative_to(root) if root else home).parts)
    return Place(package=package, path=str(home), module=module_name)


def _conventional(found: Found, path: PurePosixPath) -> bool:
    """Whether it lies in kernels/NAME/, a package, or is kernels/NAME.py."""
    if path.parts[0] != "kernels" or len(path.parts) < 2 or "kernels/__init__.py" in found.files:
        return False
    return len(path.parts) == 2 or f"kernels/{path.parts[1]}/__init__.py" in found.files


def _in_namespace(found: Found, module: Module) -> bool:
    """Whether a folder without __init__.py is a package all the same: its files import each other by its name."""
    folder = PurePosixPath(module.path).parent
    if str(folder) in {".", *found.project.roots}:
        return False
    under_root = next((r for r in found.project.roots if r and str(folder).startswith(f"{r}/")), None)
    return module.relative or under_root is not None or any(folder.parts[0] in m.roots for m in found.modules.values())


# ---------------------------------------------------------------- the table of abprof.toml


def _entry(found: Found, place: Place) -> tuple[PackageEntry, dict[str, str]]:
    build: tuple[str, ...] = ()
    env: dict[str, str] = {}
    why: dict[str, str] = {}
    inputs = [place.path if place.single else f"{place.path}/**", *_beside(found, place)]
    native = [f"{folder}/**" for folder in _NATIVE if any(name.startswith(f"{folder}/") for name in found.files)]
    submodules = [f"{sub}/**" for sub in found.project.submodules]
    if found.project.extensions:
        build = ("python", "setup.py", "build_ext", "--inplace")
        why["build"] = "setup.py makes an extension: it is compiled once for each content of `inputs`"
        inputs += [name for name in _BUILD_FILES if name in found.files] + list(found.project.reads) + native
        if any(name and not name.startswith(f"{place.package}.") for name in found.project.extensions):
            env = {"PYTHONPATH": "{worktree}"}
            why["env"] = "the extension is imported from the top, not from inside the package"
    elif any(found.modules[path].extensions for path in found.modules):
        inputs += native
    elif found.project.generated:
        path = found.project.generated[0]
        version = "__version__ = version = '0'\n__version_tuple__ = version_tuple = (0,)\n"
        build = ("python", "-c", f"open({path!r}, 'w').write({version!r})")
        why["build"] = f"{path} is written by a packaging tool, and git does not have it"
    if place.single and _siblings(found, place):
        env = {"PYTHONPATH": "{worktree}/" + str(PurePosixPath(place.path).parent)}
        env = {name: value.removesuffix("/.") for name, value in env.items()}
        why["env"] = "it imports files beside it"
    inputs = _without_covered([*inputs, *(submodules if build else [])])
    entry = PackageEntry(
        path=place.path,
        import_="" if place.single else place.package,
        inputs=tuple(inputs),
        build=build,
        env=env,
        submodules=bool(submodules and build),
    )
    why["inputs"] = "what decides a rebuild, and all that a build is given: add what else it reads"
    return entry, why


def _beside(found: Found, place: Place) -> list[str]:
    """Other packages and files of this repository that its modules import."""
    mine = [m for path, m in found.modules.items() if path == place.path or path.startswith(f"{place.path}/")]
    wanted = {root for module in mine for root in module.roots} - {place.package.split(".")[0]}
    made = []
    folder = str(PurePosixPath(place.path).parent)
    for root in dict.fromkeys((*found.project.roots, "" if folder == "." else folder)):
        prefix = f"{root}/" if root else ""
        for name in sorted(wanted):
            if f"{prefix}{name}.py" in found.files:
                made.append(f"{prefix}{name}.py")
            elif f"{prefix}{name}/__init__.py" in found.files:
                made.append(f"{prefix}{name}/**")
    return made


def _siblings(found: Found, place: Place) -> bool:
    folder = str(PurePosixPath(place.path).parent)
    prefix = "" if folder == "." else f"{folder}/"
    roots = found.modules[place.path].roots
    return any(f"{prefix}{name}.py" in found.files or f"{prefix}{name}/__init__.py" in found.files for name in roots)


def _without_covered(globs: list[str]) -> list[str]:
    """Each once, and none that lies in a folder which is there as a whole."""
    whole = {glob[:-2] for glob in globs if glob.endswith("/**")}
    return [g for g in dict.fromkeys(globs) if not any(g.startswith(w) and g != f"{w}**" for w in whole)]


# ---------------------------------------------------------------- what a person should know


def _notes(found: Found, one: Candidate, place: Place) -> list[str]:
    notes = []
    module = found.modules[one.module]
    if module.runs:
        line, text = module.runs
        notes.append(f"{one.module}:{line} runs when the file is imported, in every worker: {text.strip()[:80]}")
    if place.single and found.project.submodules:
        notes.append("submodules are not checked out: set submodules = true should the file need them")
    if "" in found.project.extensions:
        notes.append(
            "setup.py computes an extension's name: see that `build` makes it where the package imports it from"
        )
    return notes
