"""What is known of a repository from reading it: records that the proposal is made of. Nothing of it was imported."""

from __future__ import annotations

from typing import Literal

from abprof.records import Record

Kind = Literal["triton", "extension", "torch"]  # what a callable runs: Triton's kernels, an extension's, torch's own


class Use(Record, frozen=True, kw_only=True):
    """What a function's body, or its docstring, says of one parameter."""

    tensor: bool = False
    ndim: int = 0  # 0: not known
    dims: tuple[tuple[int, str], ...] = ()  # which dimension is called how; negative ones count from the end


class Parameter(Record, frozen=True, kw_only=True):
    """One parameter as it is written."""

    name: str
    annotation: str = ""
    default: str | None = None
    keyword: bool = False  # only by name
    placed: bool = False  # only by its position
    rest: bool = False  # *args, **kwargs


class Call(Record, frozen=True, kw_only=True):
    """A call whose arguments are parameters of the caller: where they go."""

    name: str  # of what is called; of `Class.apply` the class
    apply: bool = False
    places: tuple[tuple[int | str, str], ...] = ()  # position or keyword -> the caller's parameter


class Function(Record, frozen=True, kw_only=True):
    """A Python function at the top of a file, or a class's `forward`."""

    name: str
    line: int
    parameters: tuple[Parameter, ...] = ()
    names: frozenset[str] = frozenset()  # every name that its body reads; `torch.ops` stands for its users
    calls: tuple[Call, ...] = ()
    uses: dict[str, Use] = {}
    same: tuple[tuple[tuple[str, int], tuple[str, int]], ...] = ()  # dimensions that it asserts to be equal
    returns: bool = True


class Module(Record, frozen=True, kw_only=True):
    """One Python file."""

    path: str
    kernels: tuple[str, ...] = ()  # @triton.jit, @gluon.jit
    functions: dict[str, Function] = {}
    forwards: dict[str, Function] = {}  # torch.autograd.Function's name -> its forward, without ctx
    aliases: dict[str, str] = {}  # name = Class.apply
    imported: dict[str, str] = {}  # name here -> the last part of what it is
    roots: frozenset[str] = frozenset()  # first parts of absolute imports
    relative: bool = False
    exports: frozenset[str] = frozenset()  # what an __init__.py brings to the front
    extensions: frozenset[str] = frozenset()  # names that torch's load(...) or load_inline(...) is bound to
    runs: tuple[int, str] | None = None  # the first line that does work when the file is imported


class Project(Record, frozen=True, kw_only=True):
    """What pyproject.toml, setup.cfg, setup.py and .gitmodules say."""

    name: str = ""
    roots: tuple[str, ...] = ("",)  # folders that import names start from, the likeliest first
    namespaces: tuple[str, ...] = ()  # declared packages without an __init__.py, dotted
    extensions: tuple[str, ...] = ()  # import names that setup.py builds; "" for one that it computes
    cuda: bool = False  # one of them needs CUDA's compiler
    reads: tuple[str, ...] = ()  # tracked files and folders that setup.py names
    generated: tuple[str, ...] = ()  # files that a build writes and git does not have (setuptools-scm's)
    submodules: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # a line for each of these files that says nothing because it cannot be read


class Found(Record, frozen=True, kw_only=True):
    """A repository as far as it can be read."""

    files: tuple[str, ...]
    modules: dict[str, Module]
    project: Project
    unread: tuple[str, ...] = ()  # Python files that are no Python of this version, or no text


class Candidate(Record, frozen=True, kw_only=True):
    """A callable that can be measured."""

    module: str  # its file
    function: Function
    called: str  # the name to call: the function's, or the alias of a Class.apply
    kind: Kind
    kernels: tuple[str, ...] = ()  # Triton kernels that it comes to
    positional: bool = False
    score: int = 0
