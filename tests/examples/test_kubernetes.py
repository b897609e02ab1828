"""The manifests of examples/kubernetes are what Kubernetes takes, and say the same as the program beside them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

_DIRECTORY = Path(__file__).parent.parent.parent / "examples" / "kubernetes"
_VERSION = "1.34"


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((_DIRECTORY / "visits.yaml").read_text()))


def one(kind: str) -> dict[str, Any]:
    (found,) = (made for made in manifests() if made["kind"] == kind)
    return found


@pytest.mark.parametrize("made", manifests(), ids=lambda made: made["kind"])
def test_kubernetes_takes_it(made: dict[str, Any]) -> None:
    kubernetes_validate.validate(made, _VERSION, strict=True)


def test_so_it_does_the_executors_pod() -> None:
    pod = yaml.safe_load(one("ConfigMap")["data"]["executor.yaml"])
    # Spark fills in what is missing.
    pod["metadata"] = {"name": "executor"}
    kubernetes_validate.validate(pod, _VERSION, strict=True)


def test_the_program_says_what_they_say() -> None:
    program = (_DIRECTORY / "visits.py").read_text()
    literals = {node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)}
    (driver,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    mounted = {mount["mountPath"] for mount in driver["volumeMounts"]}
    assert {"/data", "/opt/config"} == mounted
    assert {"/data", "/opt/config/executor.yaml"} <= literals
    assert {str(port["port"]) for port in one("Service")["spec"]["ports"]} <= literals
    given = {variable["name"] for variable in driver["env"]}
    assert given == {name for name in literals if isinstance(name, str) and name.isupper() and name.isalpha()}
    assert one("ServiceAccount")["metadata"]["name"] in literals
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert one("Service")["spec"]["selector"] == labels
