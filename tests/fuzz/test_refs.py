"""Names of refs, valid for git and as users and events write them. Each gives its commit or one line of error."""

import re

import pytest
from hypothesis import strategies as st

from abprof import sides as repo
from abprof.records import names
from abprof.records.errors import AbprofError
from abprof.sides import Repository
from tests.fuzz.commands import one_clear_line
from tests.fuzz.mutations import hunt, many
from tests.gitrepo import GitRepo, make_repo

# Branches that git itself takes.
ALLOWED = (
    "a b".replace(" ", "\u00a0"), "-x".replace("-", "x-"), "feature/\u00e9\U0001f525", "x" * 200, "a@b", "@x", "a{b}",
    "$(id)", "`id`", "a;b", "a&b", "a|b", "<script>alert(1)</script>", "a'b", 'a"b', "=1+1", "+1", "#1", "%s%n",
    "{worktree}", "--x".replace("--", "y--"), "dist", "dist=x", "HEAD", "main.x", "refs/heads/x", "heads/main",
    "origin/main", "a/b/c/d", "run", "report", "0" * 40, "deadbeef", "\u202eabc", "e\u0301", "\ud7ff", "_", "\u2025",
    "CON", "a,b", "!x", "a...b".replace("...", "\u2026")
)  # fmt: skip
# Invalid names of refs, and names with another meaning.
WORDS = (
    "", " ", "-", "--", "-x", "--help", "--repo", "-C", "..", "...", "a..b", "main..HEAD", "main...", "...main", "@",
    "@{", "@{u}", "@{-1}", "HEAD@{0}", "HEAD~99999999999", "HEAD^{tree}", "HEAD^{/x}", ":/", ":/x", "HEAD:", "HEAD:a",
    ":0:a", "^main", "main^!", "main^@", "x" * 300, "x" * 5000, "/", "/etc/passwd", "../../x", "~", "*", "ma*n", "[a]",
    "\0", "\n", "\x1b[2J", "\x7f", "a\tb", "\udcff", ".lock", "x.lock", "dist:", "dist:x", "dist:==1", "dist:-r==1",
    "dist:../x==1", "dist:x==", "dist:x==1;y", "dist:a @ file:///x==1", "0" * 39, "0" * 41, "0" * 64, "a" * 40,
    "main^{commit}^{commit}", "HEAD^9", "HEAD~1~1", "stash@{0}", "FETCH_HEAD", "main@{yesterday}", "main@{9}",
    "-" * 4000, "heads/main:x", "\u202e", "HEAD^{/" + "(" * 200 + "}"
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    found = make_repo(tmp_path_factory.mktemp("refs") / "repo")
    found.commit("one", {"a": "1"})
    return found


@pytest.fixture(scope="module")
def repository(made: GitRepo) -> Repository:
    found = repo.open_repository(made.path, cache=made.path.parent / "cache")
    assert isinstance(found, Repository)
    return found


def resolved(repository: Repository, *specs: str) -> tuple[str, ...]:
    """The labels of the sides; () where they are refused."""
    try:
        sides, notes = repo.resolve(repository, specs)
    except AbprofError as error:
        one_clear_line(error)
        return ()
    for side in sides:
        assert re.fullmatch("[0-9a-f]{40}", side.commit)
    assert all("\n" not in note for note in notes)
    return tuple(side.label for side in sides)


@pytest.mark.parametrize("name", ALLOWED, ids=ascii)
def test_a_branch_that_git_takes_is_resolved(made: GitRepo, repository: Repository, name: str) -> None:
    made.git("update-ref", f"refs/heads/{name}", "main")
    made.git("check-ref-format", f"refs/heads/{name}")
    assert resolved(repository, "main", f"refs/heads/{name}")[1] == name
    found = resolved(repository, "main", name)
    assert not found or name.endswith(found[1]) or re.fullmatch("[0-9a-f]{10}", found[1]) or found[1] == "main"
    (label,) = names.safe_labels([(name, "a" * 40)])
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,59}", label)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: ascii(word)[:30])
def test_any_word_is_a_ref_or_refused(repository: Repository, word: str) -> None:
    resolved(repository, word)
    resolved(repository, "main", word)
    resolved(repository, word, "main")


@many
def test_any_label_is_a_part_of_a_file_name(examples: int) -> None:
    text = st.text(max_size=80) | st.sampled_from((*WORDS, *ALLOWED))

    def ask(labels: list[str]) -> None:
        found = names.safe_labels([(label, "c0ffee00" * 5) for label in labels])
        assert len({one.casefold() for one in found}) == len(labels)
        for one in found:
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,59}", one), one

    hunt(st.lists(text, min_size=1, max_size=6), ask, examples)
