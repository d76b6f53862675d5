"""Repository, run, artifact, comment; a push, and all of it again: real refs, runs and files, and a real HTTP server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload

from .github_server import REPO, GitHub
from .test_bot_comment import harmless

BRANCH = "a<img/src=x/onerror=alert(1)>/`@torvalds`/</details>/#1"


def answered(lab: Lab, hub: GitHub, folder: Path, code: int) -> dict:
    """Measure the branch as it stands, and post: what the two jobs do, one after the other."""
    ran = lab.abprof(f"main...{BRANCH}")
    assert ran.code == code, ran.err
    artifact, event = folder / "notice.json", folder / "event.json"
    artifact.write_text(lab.command("report", str(ran.folder), "--format", "artifact").out)
    head = lab.repo.git("rev-parse", BRANCH).strip()
    hub.heads[7] = head
    event.write_text(json.dumps({"workflow_run": {"head_sha": head}, "repository": {"full_name": REPO}}))
    kept = lab.environment
    lab.environment = lambda: {**kept(), "GITHUB_API_URL": hub.url, "GITHUB_TOKEN": "bot-token", "NO_PROXY": "*"}  # type: ignore[method-assign]
    done = lab.command("comment", "--artifact", str(artifact), "--event", str(event), "--check")
    lab.environment = kept  # type: ignore[method-assign]
    assert done.code == 0, done.err
    (live,) = hub.live()
    shown, _, hidden = live["body"].rstrip().rpartition("\n")
    harmless(shown)
    assert hidden.startswith("<!-- abprof:v1 ")
    assert ran.run.header.sentence in shown.splitlines()[0]
    return live


@pytest.mark.slow
def test_a_branch_is_answered_and_again_after_every_push(tmp_path: Path) -> None:
    load = Workload(kernel="ffa", presets={"default": {"direction": ["fwd", "bwd"]}})
    slow = Time(factor=1.2, cell="*direction=bwd", side="target")
    plain = Time(ns=20e6)
    lab = Lab(tmp_path / "lab", Scenario(workloads={"dense": load}, times=[plain, slow]))
    lab.repo.git("branch", BRANCH, "fast")
    with GitHub() as hub:
        first = answered(lab, hub, tmp_path, 1)
        assert first["body"].startswith("## abprof: Act: 1 slower")
        assert hub.checks[-1]["conclusion"] == "failure"

        lab.repo.checkout(BRANCH)
        lab.repo.commit("Slower in another way", {"kernels/ffa/__init__.py": "WHO = 'slower'\n"})
        again = answered(lab, hub, tmp_path, 1)
        assert again["id"] == first["id"], "the same answer is edited in place"
        assert again["edits"] == 1

        lab.repo.commit("Mended", {"kernels/ffa/__init__.py": "WHO = 'mended'\n"})
        lab.set(Scenario(workloads={"dense": load}, times=[plain]))
        last = answered(lab, hub, tmp_path, 0)
        assert last["id"] != first["id"], "another answer is posted anew"
        assert [comment["minimised"] for comment in hub.comments] == [True, False]
        assert hub.checks[-1]["conclusion"] == "success"
        assert len(hub.checks) == 3
    assert lab.left_behind() == []
