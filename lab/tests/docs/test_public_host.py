"""Workflows and issue forms of a public host cannot run here: a linter reads them."""

import subprocess
import sys
import tomllib

import pytest
import yaml

from docs.markdown_blocks import ROOT

HOST = ROOT / ".github"
KINDS = {
    "github-workflows": sorted(HOST.glob("workflows/*.yml")),
    "github-issue-forms": [
        file for file in sorted(HOST.glob("ISSUE_TEMPLATE/*.yml")) if file.stem != "config"
    ],
    "github-issue-config": [HOST / "ISSUE_TEMPLATE" / "config.yml"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_follow_their_schema(kind):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}"]
    done = subprocess.run([*command, *KINDS[kind]], capture_output=True, text=True)
    assert KINDS[kind]
    assert done.returncode == 0, done.stdout


def test_the_workflow_runs_what_the_repository_has():
    steps = [
        step
        for file in KINDS["github-workflows"]
        for job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
        for step in job["steps"]
    ]
    commands = "\n".join(step.get("run", "") for step in steps)
    for path in (".ci/run", "tests/test_filter.py", "tests/optim", "tests/kernels"):
        assert path in commands
        assert (ROOT / path).exists()
    assert "make docs" in commands
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ci = yaml.safe_load((HOST / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    matrix = ci["jobs"]["core"]["strategy"]["matrix"]
    assert min(matrix["python"]) == needed["requires-python"].removeprefix(">=")
    (torch_version,) = [n for n in needed["dependencies"] if n.startswith("torch")]
    by_number = sorted(matrix["torch"], key=lambda version: [*map(int, version.split("."))])
    assert by_number[0] == torch_version.removeprefix("torch>=")


def jobs():
    return yaml.safe_load((HOST / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]


def test_the_core_is_tested_on_other_systems_and_versions_of_torch():
    matrix = jobs()["core"]["strategy"]["matrix"]
    systems = {system.rpartition("-")[0] for system in matrix["os"]}
    assert systems == {"ubuntu", "macos", "windows"}
    assert len(set(matrix["torch"])) >= 2
    assert jobs()["core"]["runs-on"] == "${{ matrix.os }}"


def test_a_skip_fails_the_whole_suite_only():
    """A public host always sets CI, and the core's job has no packages of other people."""
    (tests,) = [step for step in jobs()["core"]["steps"] if "pytest -m" in step.get("run", "")]
    assert tests["env"] == {"CI": ""}
    assert all("env" not in step for step in jobs()["everything"]["steps"])


def test_the_site_of_the_host_knows_its_address():
    assert {"REPOSITORY_URL", "SITE_URL"} <= jobs()["site"]["env"].keys()
