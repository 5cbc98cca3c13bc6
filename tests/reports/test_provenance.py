"""A result names the revision of the code that made it, and no other repository's."""

import subprocess

from archipel.reports.provenance import provenance, revision, revision_words


def git(folder, *words):
    about = ["-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    return subprocess.run(["git", *about, *words], capture_output=True, text=True, check=True).stdout.strip()


def repository(folder):
    """A repository in the layout of this one, with one commit."""
    package = folder / "src/archipel/reports/provenance.py"
    package.parent.mkdir(parents=True)
    package.write_text("one")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return package


def test_a_revision_is_the_commit_and_says_when_sources_differ(tmp_path):
    package = repository(tmp_path)
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert revision(package) == commit
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/result.json").write_text("{}")  # a result that is being written changes nothing
    assert revision(package) == commit
    package.write_text("two")
    assert revision(package) == f"{commit}+changes"
    assert revision_words(revision(package)) == f"git {commit[:12]} with uncommitted changes"
    git(tmp_path, "commit", "-q", "-a", "-m", "two")
    (tmp_path / "src/new.py").write_text("")  # a module that no commit has
    assert revision(package).endswith("+changes")


def test_the_current_folder_is_not_asked(tmp_path, monkeypatch):
    here = revision()
    repository(tmp_path / "foreign")
    (tmp_path / "foreign/.git/config").open("a").write('[core]\n\tfsmonitor = "touch executed; false"\n')
    monkeypatch.chdir(tmp_path / "foreign")
    assert revision() == here
    assert not (tmp_path / "foreign/executed").exists()


def test_outside_of_its_repository_a_package_has_no_revision(tmp_path):
    package = repository(tmp_path / "other")
    installed = tmp_path / "site-packages/archipel/reports/provenance.py"
    installed.parent.mkdir(parents=True)
    installed.write_text(package.read_text())
    assert revision(installed) is None
    # a virtual environment inside another project's repository
    inside = tmp_path / "other/.venv/lib/archipel/reports/provenance.py"
    inside.parent.mkdir(parents=True)
    inside.write_text("")
    git(tmp_path / "other", "mv", "src/archipel", "elsewhere")
    assert revision(inside) is None


def test_provenance_is_of_this_code():
    about = provenance()
    assert about["git"] == revision()
    assert {"date", "python", "torch", "platform"} <= about.keys()
