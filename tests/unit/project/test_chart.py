"""The Helm chart: Helm's linter, Kubernetes' schemas, and the configuration that it renders, read by the notary."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from haproxy.render import render
from replica.config.load import load_config
from replica.config.model import Config

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy/helm/notary"
HELM = shutil.which("helm", path=str(ROOT / ".tools"))
OLDEST, NEWEST = "1.27", "1.37"  # Chart.yaml, kubeVersion; what the schemas' package has
CUSTOM = {"PodMonitor"}  # not Kubernetes' own: no schema of it is here
pytestmark = pytest.mark.skipif(HELM is None, reason="no Helm here: make helm")
CHOICES = {
    "defaults": (),
    "two on few machines": ("replicas=2", "antiAffinity=preferred", "zoneSpread=false", "haproxy.replicas=1"),
    "all on": ("podMonitor.enabled=true", "haproxy.serviceType=LoadBalancer", "storage.className=fast", "cluster=gold"),
    "no policy": ("networkPolicy.enabled=false", "priorityClassName=high", "imagePullSecrets[0].name=registry"),
    "by digest": (f"image.digest=sha256:{'0' * 64}", "nodeSelector.disk=fast", "podAnnotations.a=b"),
}


def helm(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [str(HELM), *words], capture_output=True, text=True, check=False, timeout=120, env=environment
    )


def rendered(home: Path, *settings: str, release: str = "gold") -> list[dict[str, Any]]:
    """What the chart makes for a release, with settings of the form NAME=VALUE."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = helm("template", release, str(CHART), "--namespace", "bank", *chosen, home=home)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def one(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def test_helm_finds_nothing_to_correct(tmp_path: Path) -> None:
    """Goal: no mistake that Helm knows of. Method: `helm lint --strict`."""
    done = helm("lint", "--strict", str(CHART), home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[ERROR]" not in done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_accepts_what_the_chart_makes(choice: str, version: str, tmp_path: Path) -> None:
    """Goal: no field that Kubernetes does not know, oldest release or newest. Method: its schemas, strict."""
    documents = rendered(tmp_path, *CHOICES[choice])
    for document in documents:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, version, strict=True)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)


def test_the_schemas_refuse_a_field_that_is_none(tmp_path: Path) -> None:
    """Goal: the test above can fail. Method: one misspelt field."""
    pods = one(rendered(tmp_path), "StatefulSet", "gold-notary")["spec"]["template"]["spec"]
    pods["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        for document in [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pods}]:
            kubernetes_validate.validate(document, NEWEST, strict=True)


@pytest.mark.parametrize(
    "setting",
    [
        "replicas=1",
        "image.tag=latest",
        "antiAffinity=none",
        "ports.api=80",
        "replica=3",
        "terminationGracePeriodSeconds=5",
        'settings="[database]\n[endpoint]"',
        "settings=",
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(setting: str, tmp_path: Path) -> None:
    """Goal: a typing error is found before anything runs. Method: values.schema.json, by `helm template`."""
    done = helm("template", "gold", str(CHART), "--set", setting, home=tmp_path)
    assert done.returncode != 0
    assert setting.partition("=")[0].partition(".")[0] in done.stderr


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Config]:
    """The configuration that the chart renders, read by the notary, without its files as in HAProxy's pod."""
    text = one(rendered(tmp_path), "ConfigMap", "gold-notary")["data"]["notary.toml"]
    (tmp_path / "notary.toml").write_text(text)
    yield load_config(tmp_path / "notary.toml")


def test_the_notary_reads_what_the_chart_writes(settings: Config, tmp_path: Path) -> None:
    """Goal: pods start with it and find one another. Method: names, hosts and ports on both sides."""
    documents = rendered(tmp_path)
    replicas = one(documents, "StatefulSet", "gold-notary")
    headless = one(documents, "Service", replicas["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert [replica.name for replica in settings.replicas] == [
        f"gold-notary-{n}" for n in range(replicas["spec"]["replicas"])
    ]
    (container,) = replicas["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["replica", "--config", "/etc/notary/notary.toml", "--name", "$(POD_NAME)"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    for replica in settings.replicas:
        assert replica.host == f"{replica.name}.gold-notary-replicas.bank.svc.cluster.local"
        ports = (replica.api_port, replica.proxy_port, replica.health_port)
        assert ports == (named["api"], named["proxy"], named["health"])
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(settings.data_dir), "/etc/notary", "/tmp"} <= mounts


def test_haproxy_in_the_chart_finds_pods_that_move(settings: Config, tmp_path: Path) -> None:
    """Goal: one endpoint, led to the active. Method: what HAProxy's pod renders, its ports and its service."""
    text = render(settings.haproxy_settings())
    assert "resolvers names" in text
    policy = one(rendered(tmp_path), "NetworkPolicy", "gold-notary")["spec"]["ingress"]
    (to_proxy,) = [rule for rule in policy if {"port": "proxy", "protocol": "TCP"} in rule["ports"]]
    (haproxy,) = to_proxy["from"]
    assert haproxy["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "haproxy"
    deployment = one(rendered(tmp_path), "Deployment", "gold-notary-haproxy")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    exporter = settings.haproxy_settings().exporter
    assert exporter is not None
    assert {port["containerPort"] for port in container["ports"]} == {settings.endpoint.port, exporter.port}
    assert container["readinessProbe"]["httpGet"] == {"path": "/alive", "port": "exporter"}


OF_ALL = ("{}", '{"matchLabels":{}}', '{"matchExpressions":[]}')  # selectors that select everything


def test_metrics_are_for_named_pods_alone(tmp_path: Path) -> None:
    """Goal: no other namespace reads metrics and health. Method: the rules' peers, and values that would let all in."""
    policy = one(rendered(tmp_path), "NetworkPolicy", "gold-notary")["spec"]["ingress"]
    selectors = [selector for rule in policy for peer in rule["from"] for selector in peer.values()]
    assert all(selector.get("matchLabels") for selector in selectors)
    peers = (
        "",
        "{}",
        *(f'{{"{kind}":{of_all}}}' for kind in ("namespaceSelector", "podSelector") for of_all in OF_ALL),
        '{"ipBlock":{"cidr":"0.0.0.0/0"}}',
    )
    for everybody in peers:
        setting = f"networkPolicy.metricsFrom=[{everybody}]"
        done = helm("template", "gold", str(CHART), "--set-json", setting, home=tmp_path)
        assert done.returncode != 0, setting
        assert "metricsFrom" in done.stderr


def test_pods_are_nobody_and_cannot_write(tmp_path: Path) -> None:
    """Goal: the restricted standard of pod security. Method: each container of each workload."""
    documents = rendered(tmp_path)
    for kind, name in (("StatefulSet", "gold-notary"), ("Deployment", "gold-notary-haproxy")):
        pods = one(documents, kind, name)["spec"]["template"]["spec"]
        assert pods["automountServiceAccountToken"] is False
        assert pods["securityContext"]["runAsNonRoot"] is True
        assert pods["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pods["containers"], *pods.get("initContainers", ())):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


def test_one_machine_takes_one_replica_and_one_replica_goes_at_a_time(tmp_path: Path) -> None:
    """Goal: maintenance of a cluster is no outage. Method: affinity, budget, probes and the hook before the end."""
    documents = rendered(tmp_path)
    replicas = one(documents, "StatefulSet", "gold-notary")["spec"]
    pods = replicas["template"]
    (away,) = pods["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert away["topologyKey"] == "kubernetes.io/hostname"
    budget = one(documents, "PodDisruptionBudget", "gold-notary")["spec"]
    assert budget["maxUnavailable"] == 1
    for selector in (away["labelSelector"], budget["selector"], replicas["selector"]):
        assert selector["matchLabels"].items() <= pods["metadata"]["labels"].items()
        assert selector["matchLabels"]["app.kubernetes.io/component"] == "replica"
    (container,) = pods["spec"]["containers"]
    assert {probe: container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }
    hook = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    asked = 'exec notary switchover --config /etc/notary/notary.toml --if-active "$POD_NAME"'
    assert hook == f'{asked} --reason "the pod ends"'


def test_the_grace_period_covers_a_whole_switchover(settings: Config, tmp_path: Path) -> None:
    """Goal: no pod is killed while it hands over. Method: the longest switchover and step-down, from their settings."""
    from replica.cli.steer import ACTIVE_WAIT_S

    pods = one(rendered(tmp_path), "StatefulSet", "gold-notary")["spec"]["template"]["spec"]
    election = settings.election
    longest_s = election.drain_max_s + election.switchover_wait_s + ACTIVE_WAIT_S + election.drain_max_s
    assert pods["terminationGracePeriodSeconds"] >= longest_s
