"""An Indexed Job of Kubernetes that measures a run's cells: each pod one part of them, on one GPU, into a run folder of its own.

Names of branches and cells are foreign text in a file that a cluster acts on: whatever the template prints becomes one quoted
scalar, and what becomes a program's argument is not expanded by Kubernetes either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from abprof.records import Record, Run
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.report.scripts import quoting

WHERE = "--k8s"
_NAME = r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?"  # as Kubernetes has them, with room for a pod's index behind it
_SPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
# Its quantities above zero: a number with a suffix or an exponent, not both.
_QUANTITY = r"\+?(?=[0-9.]*[1-9])([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,9})?"
_LARGEST = 900_000  # bytes of cells: the API server keeps objects of one megabyte


class Pods(Record, frozen=True, kw_only=True):
    """What differs from cluster to cluster: `--k8s-option KEY=VALUE`."""

    image: str  # with abprof, git, and what the kernels are built with
    claim: str  # a PersistentVolumeClaim that all pods mount at once
    mount: str = "/abprof"  # where they do
    repo: str = "/abprof/repo"  # the repository, as a pod sees it
    results: str = "/abprof/runs"
    node: str = ""  # a label: nvidia.com/gpu.product=NVIDIA-H200, or several values with | between them
    parallel: int = 4  # pods at once
    cpus: str = "8"
    memory: str = "64Gi"
    deadline: str = "4h"  # of the whole Job
    budget: str = ""  # of a pod's measuring; "": abprof's own
    name: str = ""  # of the Job; "": of the run
    namespace: str = ""


def options(words: Sequence[str]) -> Pods:
    """`KEY=VALUE` words as options. Raises AbprofError."""
    pairs = [word.partition("=") for word in words]
    bad = next((word for word, pair in zip(words, pairs, strict=True) if not pair[1]), None)
    known = ", ".join(Pods.__struct_fields__)
    if bad is not None:
        raise AbprofError(f"{bad!r} is not KEY=VALUE", where="--k8s-option", advice=f"there is {known}")
    try:
        pods = msgspec.convert({key: value for key, _, value in pairs}, Pods, strict=False)
    except msgspec.ValidationError as error:
        said = str(error).replace("Object missing required field", "needs").replace("Object contains ", "")
        raise AbprofError(said, where="--k8s-option", advice=f"there is {known}") from None
    if pods.parallel < 1:
        raise AbprofError("parallel begins at 1", where="--k8s-option")
    for key, pattern, example in (
        ("cpus", _QUANTITY, "8"),
        ("memory", _QUANTITY, "64Gi"),
        ("name", f"({_NAME})?", "abprof-ffa"),
        ("namespace", f"({_SPACE})?", "kernels"),
    ):
        if not re.fullmatch(pattern, value := getattr(pods, key)):
            wanted = "no amount above zero" if pattern is _QUANTITY else "none"
            what = f"{value!r} is {wanted} that Kubernetes takes"
            raise AbprofError(what, where=f"--k8s-option {key}", advice=f"{key}={example}")
    if pods.node and not all(pods.node.partition("=")):
        what = f"{pods.node!r} is not a label and its value"
        raise AbprofError(what, where="--k8s-option node", advice="node=nvidia.com/gpu.product=NVIDIA-H200")
    return pods


def manifest(run: Run, words: Sequence[str], shards: Sequence[Sequence[str]], pods: Pods) -> str:
    """The YAML of a ConfigMap with each shard's cells, and of the Job; `words` is what `abprof run` is told in every pod.

    Raises AbprofError for what a pod cannot measure.
    """
    _refuse(run, shards)
    name = pods.name or _name(run)
    key, _, values = pods.node.partition("=")
    made = _environment()
    script = made.loader.get_source(made, "k8s/shard.sh")[0] if made.loader else ""
    budget = (f"--budget={seconds(pods.budget, '--k8s-option budget'):g}s",) if pods.budget else ()
    return made.get_template("k8s/job.yaml").render(
        title=f"{' against '.join(side.label for side in run.sides)}, {sum(map(len, shards))} cells on {len(shards)} pods",
        name=name,
        pods=pods,
        parallel=min(pods.parallel, len(shards)),
        deadline=math.ceil(seconds(pods.deadline, "--k8s-option deadline")),
        results=f"{pods.results.rstrip('/')}/{name}",
        key=key,
        values=values.split("|"),
        script=script,
        words=(*(word for word in words if not word.startswith("--python=")), *budget),  # the image has its own
        shards=shards,
    )


def _refuse(run: Run, shards: Sequence[Sequence[str]]) -> None:
    for side in run.sides:
        if side.kind == "worktree":
            what = "a pod has no working tree of yours"
            raise AbprofError(what, where=f"side {side.id}", advice="commit it, and name the commit")
    judges = run.setup.workloads_from
    if judges and judges not in {side.id for side in run.sides}:
        raise AbprofError("a pod does not see them", where=f"workloads of {judges}", advice="take them from a side")
    cells = [cell for shard in shards for cell in shard]
    if not cells:
        raise AbprofError("no cell to measure", where=WHERE)
    odd = next((cell for cell in cells if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]", cell)), None)
    if odd is not None:
        raise AbprofError("a name with a control character in it", where=repr(odd), advice="--only leaves it out")
    if sum(len(cell.encode()) + 1 for cell in cells) > _LARGEST:
        raise AbprofError(f"{len(cells)} cells are more than one object may hold", where=WHERE, advice="--only chooses")


def _name(run: Run) -> str:
    """A name as Kubernetes has them, with room for a pod's index behind it."""
    return re.sub(r"[^a-z0-9]+", "-", f"abprof-{run.id}".lower())[:50].strip("-")


def _environment() -> Environment:
    made = quoting(_scalar)
    made.filters["argument"] = lambda text: _scalar(str(text).replace("$", "$$"))  # $(NAME) is Kubernetes' own, else
    made.filters["comment"] = lambda text: Markup(re.sub(r"[^\x20-\x7e]+", " ", str(text)))  # noqa: S704
    made.filters["number"] = made.filters["word"] = Markup  # written in the template
    return made


def _scalar(value: Any) -> Any:
    """A double-quoted scalar of YAML, whatever is in it."""
    if isinstance(value, Markup):
        return value
    escaped = re.sub(r'["\\]|[^\x20-\x7e]', lambda found: _escape(found[0]), str(value))
    return Markup(f'"{escaped}"')  # noqa: S704


def _escape(letter: str) -> str:
    return f"\\{letter}" if letter in '"\\' else f"\\U{ord(letter):08x}"
