"""The Kubernetes manifests are valid, fit together, and give the servers settings that these accept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUSTOMIZATION: Final = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS: Final[list[dict[str, Any]]] = [
    document
    for name in [*KUSTOMIZATION["resources"], "founding.yaml"]
    for document in yaml.safe_load_all((FOLDER / name).read_text())
]
SETS: Final = [each for each in MANIFESTS if each["kind"] == "StatefulSet"]
#: What Kubernetes says to a container through fieldRef and configMapKeyRef, for the pod with this number.
POD: Final = {
    "metadata.namespace": "rocketq",
    "metadata.labels['apps.kubernetes.io/pod-index']": "1",
    "register-new": "true",
}


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in MANIFESTS if each["kind"] == kind]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(only)


def environment(workload: dict[str, Any]) -> dict[str, str]:
    """The variables that the first pod's container gets, as Kubernetes expands them."""
    said = {**POD, "metadata.name": f"{workload['metadata']['name']}-1"}
    found: dict[str, str] = {}
    for each in container(workload)["env"]:
        source = each.get("valueFrom", {})
        key = source.get("fieldRef", {}).get("fieldPath") or source.get("configMapKeyRef", {}).get("key")
        value = said[key] if key else each["value"]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_fits_the_schema_of_kubernetes(manifest: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    wrong = []
    for version in ("1.32", schemas.latest_version()):
        try:
            schemas.validate(manifest, version, strict=True)
        except schemas.ValidationError as error:
            # Its text is the whole schema.
            wrong.append(error.message)
    assert wrong == []


def test_every_manifest_is_of_the_kustomization_or_of_the_founding() -> None:
    named = {*KUSTOMIZATION["resources"], "founding.yaml", "kustomization.yaml"}
    assert {each.name for each in FOLDER.iterdir()} == named


@pytest.mark.parametrize("workload", SETS, ids=lambda each: each["metadata"]["name"])
def test_a_server_accepts_the_settings_of_its_pod(workload: dict[str, Any]) -> None:
    server, run = container(workload)["args"]
    assert run == "run"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ROCKETQ_")}
    done = subprocess.run(
        [sys.executable, "-m", "rocketq.cli.main", "config", "show", server, "-o", "jsonl"],
        env={**variables, **environment(workload)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    given = [name for name in environment(workload) if name.startswith("ROCKETQ_")]
    # A variable whose name is no setting has no line, so a misspelt one is met here.
    assert [name for name in given if f'{name}"' not in done.stdout] == []


def test_brokers_ask_the_nameservers_under_the_names_that_they_answer_to() -> None:
    (nameservers,) = [each for each in SETS if container(each)["args"][0] == "nameserver"]
    name, replicas = nameservers["metadata"]["name"], nameservers["spec"]["replicas"]
    service = nameservers["spec"]["serviceName"]
    hosts = [f"{name}-{number}.{service}.rocketq.svc" for number in range(replicas)]
    for broker in SETS:
        if broker is not nameservers:
            asked = environment(broker)["ROCKETQ_BROKER_NAMESERVERS"].split(",")
            assert asked == [f"http://{host}:9876" for host in hosts]
    assert hosts[1] in environment(nameservers)["ROCKETQ_NAMESERVER_ALLOWED_HOSTS"].split(",")


def test_each_set_has_its_service_its_budget_and_the_network_policy() -> None:
    (policy,) = of_kind("NetworkPolicy")
    for workload in SETS:
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"] == labels
        services = [each for each in of_kind("Service") if each["spec"]["selector"] == labels]
        assert [each["metadata"]["name"] for each in services] == [workload["spec"]["serviceName"]]
        ports = [port["containerPort"] for port in container(workload)["ports"]]
        assert [port["port"] for port in services[0]["spec"]["ports"]] == ports
        assert set(ports) <= {each["port"] for each in policy["spec"]["ingress"][0]["ports"]}
        budgets = [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget")]
        assert labels in budgets
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_a_broker_says_the_address_under_which_its_service_finds_it() -> None:
    for workload in SETS:
        if container(workload)["args"][0] == "broker":
            name, service = workload["metadata"]["name"], workload["spec"]["serviceName"]
            address = environment(workload)["ROCKETQ_BROKER_ADVERTISE"]
            assert address == f"http://{name}-1.{service}.rocketq.svc:10911"


def test_no_acceptor_is_told_for_good_that_it_is_new() -> None:
    assert "founding.yaml" not in KUSTOMIZATION["resources"]
    for workload in SETS:
        for each in container(workload)["env"]:
            if each["name"] == "ROCKETQ_NAMESERVER_REGISTER_NEW":
                assert each["valueFrom"]["configMapKeyRef"]["optional"] is True
