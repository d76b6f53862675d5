"""`abprof scripts --k8s`: the manifest is what Kubernetes would read, and what its pods run is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
import yaml
from msgspec import Meta

from abprof.records import Run
from abprof.records.errors import AbprofError
from abprof.report.k8s import Pods, manifest, options
from abprof.store import runfolder
from tests import runs
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload
from tests.test_scripts import ODD, cell_of
from tests.tinyrepo import abprof, tiny_repo

PODS = Pods(image="registry.example/abprof:1", claim="shared")
Name = Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Quantity = Annotated[
    str, Meta(pattern=r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
]  # as Kubernetes' own code has it


class Known(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Of Kubernetes' API (batch/v1, core/v1) the fields that are used here, with their types; any other one is a mistake."""


class Meta_(Known):
    name: Name | msgspec.UnsetType = msgspec.UNSET
    namespace: Name | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str] = {}


class ConfigMap(Known):
    api_version: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: Meta_
    immutable: bool
    data: dict[Annotated[str, Meta(pattern="^[-._a-zA-Z0-9]+$")], str]


class Requirement(Known):
    key: str
    operator: Literal["In"]
    values: list[str]


class Term(Known):
    match_expressions: list[Requirement]


class Terms(Known):
    node_selector_terms: list[Term]


class NodeAffinity(Known):
    required: Terms = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Known):
    node_affinity: NodeAffinity


class Variable(Known):
    name: str
    value: str


class Amounts(Known):
    gpu: Literal[1] = msgspec.field(name="nvidia.com/gpu")
    cpu: Quantity
    memory: Quantity


class Resources(Known):
    requests: Amounts
    limits: Amounts


class Mount(Known):
    name: Name
    mount_path: str
    read_only: bool = False


class Container(Known):
    name: Name
    image: str
    command: list[str]
    args: list[str]
    env: list[Variable]
    resources: Resources
    volume_mounts: list[Mount]


class Claim(Known):
    claim_name: Name


class OfMap(Known):
    name: Name


class Nothing(Known):
    pass


class Volume(Known):
    name: Name
    persistent_volume_claim: Claim | msgspec.UnsetType = msgspec.UNSET
    config_map: OfMap | msgspec.UnsetType = msgspec.UNSET
    empty_dir: Nothing | msgspec.UnsetType = msgspec.UNSET


class PodSpec(Known):
    restart_policy: Literal["Never"]
    containers: list[Container]
    volumes: list[Volume]
    affinity: Affinity | msgspec.UnsetType = msgspec.UNSET


class Template(Known):
    metadata: Meta_
    spec: PodSpec


class JobSpec(Known):
    completion_mode: Literal["Indexed"]
    completions: int
    parallelism: int
    backoff_limit: Literal[0]
    active_deadline_seconds: int
    template: Template


class Job(Known):
    api_version: Literal["batch/v1"]
    kind: Literal["Job"]
    metadata: Meta_
    spec: JobSpec


def read(text: str) -> tuple[ConfigMap, Job]:
    cells, job = yaml.safe_load_all(text)
    return msgspec.convert(cells, ConfigMap), msgspec.convert(job, Job)


def of(run: Run, shards: list[list[str]], words: list[str] | None = None, **pods: Any) -> tuple[ConfigMap, Job]:
    return read(manifest(run, words or ["main", "fast"], shards, msgspec.structs.replace(PODS, **pods)))


def test_the_manifest_is_an_indexed_job_of_whole_gpus() -> None:
    run = runs.run()
    ids = [cell.id for cell in run.cells]
    asked = {
        "node": "nvidia.com/gpu.product=NVIDIA-H200|NVIDIA-H100",
        "deadline": "90m",
        "budget": "10m",
        "parallel": 2,
    }
    cells, job = of(run, [ids[:2], ids[2:3], ids[3:]], ["main", "fast", "--python=base=/home/me/python"], **asked)
    assert (job.spec.completions, job.spec.parallelism, job.spec.active_deadline_seconds) == (3, 2, 5400)
    assert sorted(cells.data) == ["0", "1", "2"]
    assert cells.data["0"].splitlines() == ids[:2]
    (container,) = job.spec.template.spec.containers
    assert container.resources.requests == container.resources.limits
    assert container.args[1:] == ["abprof", "main", "fast", "--budget=600s"], "an image has an interpreter of its own"
    assert isinstance(job.spec.template.spec.affinity, Affinity)
    (term,) = job.spec.template.spec.affinity.node_affinity.required.node_selector_terms
    assert term.match_expressions == [
        Requirement(key="nvidia.com/gpu.product", operator="In", values=["NVIDIA-H200", "NVIDIA-H100"])
    ]
    mounted = {mount.name for mount in container.volume_mounts}
    assert mounted == {volume.name for volume in job.spec.template.spec.volumes}
    assert isinstance(of(run, [ids])[1].spec.template.spec.affinity, msgspec.UnsetType), "any node without a label"


def test_foreign_text_stays_text_in_yaml_and_for_kubernetes() -> None:
    run = runs.run()
    odd = [text for text in ODD if "\n" not in text] + [
        "- a: b",
        "&x",
        "*x",
        "%TAG",
        "? ",
        "null",
        "$(REPOSITORY)",
        "\u00a0",
    ]
    ids = [f"dense/mask={text}" for text in odd]
    cells = tuple(cell_of(run.cells[0], id) for id in ids)
    side = msgspec.structs.replace(run.sides[1], label="x\n---\nkind: Pod", spec="*")
    run = msgspec.structs.replace(run, cells=cells, sides=(run.sides[0], side))
    found, job = of(run, [ids], ["main", "fast", *odd])
    assert found.data["0"].split("\n")[:-1] == ids
    (container,) = job.spec.template.spec.containers
    assert [word.replace("$$", "$") for word in container.args[2:]] == ["main", "fast", *odd]
    assert not any("$(" in word.replace("$$", "") for word in container.args), "Kubernetes expands $(NAME)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["image"], "'image' is not KEY=VALUE"),
        (["image=i"], "needs `claim`"),
        (["image=i", "claim=c", "gpus=2"], "unknown field `gpus`"),
        (["image=i", "claim=c", "parallel=many"], "Expected `int`"),
        (["image=i", "claim=c", "parallel=0"], "parallel begins at 1"),
        (["image=i", "claim=c", "node=h200"], "is not a label and its value"),
        (
            ["image=i", "claim=c", "cpus=many"],
            "--k8s-option cpus: 'many' is no amount above zero that Kubernetes takes (cpus=8)",
        ),
        *(
            (["image=i", "claim=c", f"{key}={amount}"], f"--k8s-option {key}: '{amount}' is no amount above zero")
            for key in ("cpus", "memory")
            for amount in (
                "",
                "0",
                "0.0",
                ".0",
                "0e9",
                "0Ki",
                "-1",
                ".",
                "1.2.3",
                "64GB",
                "1K",
                "1ki",
                "1e",
                "1e3Ki",
                "1 Gi",
                "\u0661",
            )
        ),
        (["image=i", "claim=c", f"name={'a' * 51}"], f"--k8s-option name: '{'a' * 51}' is none"),
        (["image=i", "claim=c", f"namespace={'a' * 64}"], f"--k8s-option namespace: '{'a' * 64}' is none"),
        (["image=i", "claim=c", "name=Dense_1"], "--k8s-option name: 'Dense_1' is none"),
        (["image=i", "claim=c", "namespace=a b"], "--k8s-option namespace: 'a b' is none"),
    ],
)
def test_what_is_no_option_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(AbprofError, match="--k8s-option") as refused:
        options(words)
    assert said in refused.value.line


AMOUNTS = "8 .5 5. 0.5 +1 100m 5n 5u 1k 2M 2G 2T 1P 1E 1Ki 1Mi 1Gi 1Ti 1Pi 1Ei 1e9 1E9 1.5e+3 12e-1"


@pytest.mark.parametrize("amount", AMOUNTS.split())
def test_amounts_are_those_of_kubernetes(amount: str) -> None:
    run = runs.run()
    words = ["image=i", "claim=c", f"cpus={amount}", f"memory={amount}", f"namespace={'n' * 63}", f"name={'a' * 50}"]
    found, job = read(manifest(run, [], [[run.cells[0].id]], options(words)))
    (container,) = job.spec.template.spec.containers
    assert (container.resources.limits.cpu, container.resources.limits.memory) == (amount, amount)
    assert (found.metadata.namespace, job.metadata.namespace) == ("n" * 63, "n" * 63)


def test_what_no_pod_can_measure_is_refused() -> None:
    run = runs.run()
    tree = msgspec.structs.replace(run.sides[1], kind="worktree")
    with pytest.raises(AbprofError, match="working tree"):
        manifest(msgspec.structs.replace(run, sides=(run.sides[0], tree)), [], [["a"]], PODS)
    with pytest.raises(AbprofError, match="no cell"):
        manifest(run, [], [], PODS)
    with pytest.raises(AbprofError, match="control character"):
        manifest(run, [], [["dense/mask=a\nb"]], PODS)
    with pytest.raises(AbprofError, match="more than one object may hold"):
        manifest(run, [], [[f"dense/mask={'x' * 100}{i}" for i in range(10_000)]], PODS)
    elsewhere = msgspec.structs.replace(run.setup, workloads_from="/home/me/judges")
    with pytest.raises(AbprofError, match="does not see"):
        manifest(msgspec.structs.replace(run, setup=elsewhere), [], [["a"]], PODS)


# ---------------------------------------------------------------- the verb, and what a pod runs


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    load = Workload(kernel="k", presets={"default": {"n": [1, 2, 3, 4]}})
    slow = Time(factor=1.3, cell="*n=2", side="target")
    made = Lab(tmp_path_factory.mktemp("k8s"), Scenario(workloads={"w": load}, times=[Time(ns=20e6), slow]))
    yield made
    assert made.left_behind() == []


def test_each_pod_measures_its_cells_into_a_folder_of_its_own(lab: Lab, tmp_path: Path) -> None:
    """The pods' script with the pods' words, by this checkout's abprof on a simulated device."""
    asked = ["scripts", "main", "fast", "--k8s", "--k8s-option", "image=i", "--k8s-option", "claim=c"]
    asked += ["--k8s-option", "parallel=2", "--k8s-option", f"repo={lab.repo.path}"]
    done = lab.command(*asked, "--repo", str(lab.repo.path), "--device", "simulated")
    assert done.code == 0, done.err
    cells, job = read(done.out)
    assert not (lab.folder / "abprof-scripts").exists(), "the manifest alone is asked for"
    ids = [id for text in cells.data.values() for id in text.splitlines()]
    assert sorted(ids) == [f"w/n={n}" for n in (1, 2, 3, 4)]
    (container,) = job.spec.template.spec.containers
    shim = tmp_path / "bin" / "abprof"
    shim.parent.mkdir()
    simulated = 'for word; do shift; [ "$word" != cuda ] || word=simulated; set -- "$@" "$word"; done'
    shim.write_text(f'#!/bin/sh\n[ "$1" = run ] || exit 9\n{simulated}\nexec {sys.executable} -P -m abprof "$@"\n')
    shim.chmod(0o755)
    before = lab.fingerprint()
    for index, text in cells.data.items():
        folder = tmp_path / index
        folder.mkdir()
        (tmp_path / "cells").mkdir(exist_ok=True)
        (tmp_path / "cells" / index).write_text(text)
        env = {one.name: one.value.replace("$$", "$") for one in container.env}
        env |= lab.environment() | {
            "CELLS": str(tmp_path / "cells"),
            "SCRATCH": str(folder),
            "JOB_COMPLETION_INDEX": index,
        }
        env |= {"RESULTS": str(tmp_path / "results"), "PATH": f"{shim.parent}:{os.environ['PATH']}"}
        argv = [*container.command, *(word.replace("$$", "$") for word in container.args)]
        ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert ended.returncode == 0, f"a slower cell is an answer: {ended.stderr}"
        (made,) = [path for path in (tmp_path / "results" / index).iterdir() if path.is_dir()]
        run, blocks, notes = runfolder.read(made)
        assert not notes
        assert sorted(cell.id for cell in run.cells) == sorted(text.splitlines())
        verdicts = {row.cell: row.verdict for row in run.comparisons if row.to == "target"}
        assert verdicts == {id: "slower" if id == "w/n=2" else "same" for id in text.splitlines()}
        assert blocks
    assert lab.fingerprint() == before


def test_pods_judge_by_what_holds_on_a_gpu_though_a_cpu_planned(tmp_path: Path) -> None:
    """A CPU's threshold of 5 % is one that its noise asks for; abprof.toml's holds everywhere."""
    repo = tiny_repo(tmp_path / "repo")
    repo.branch("fast")
    asked = (
        "scripts",
        "main",
        "fast",
        "--k8s",
        "--k8s-option",
        "image=i",
        "--k8s-option",
        "claim=c",
        "--device",
        "cpu",
    )
    done = abprof(*asked, cwd=repo.path, home=tmp_path)
    assert done.code == 0, done.err
    words = read(done.out)[1].spec.template.spec.containers[0].args
    assert {"--threshold=1.5", "--margin=0.5"} <= set(words)
    assert "the cells are those of a CPU, and pods measure on GPUs" in done.err
    repo.write({"abprof.toml": "[defaults]\nthreshold = 3\n"})
    words = read(abprof(*asked, cwd=repo.path, home=tmp_path).out)[1].spec.template.spec.containers[0].args
    assert {"--threshold=3", "--margin=0.5"} <= set(words)


def test_a_manifest_is_printed_and_goes_into_no_folder(lab: Lab) -> None:
    asked = ("--k8s", "--k8s-option", "image=i", "--k8s-option", "claim=c", "--out", "x")
    done = lab.command("scripts", "main", "fast", *asked, "--repo", str(lab.repo.path))
    assert (done.code, done.out) == (2, "")
    assert "--out: --k8s prints the manifest and writes no file (redirect it: > job.yaml)" in done.err


def test_the_options_need_the_verb(lab: Lab) -> None:
    done = lab.command("scripts", "main", "fast", "--k8s-option", "image=i", "--repo", str(lab.repo.path))
    assert done.code == 2
    assert "--k8s-option: without --k8s" in done.err
