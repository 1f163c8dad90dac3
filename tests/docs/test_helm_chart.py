"""examples/helm/dlog, rendered by Helm: valid, and what the manifests of examples/kubernetes are."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dlog.cli.main import main
from tests.docs.test_kubernetes_page import documents as manifests
from tests.docs.test_kubernetes_page import parsed
from tests.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

CHART = ROOT / "examples" / "helm" / "dlog"
TOOL = ROOT / ".tools" / "helm"  # of `.ci/setup test`
EXISTING = ("zookeeper.enabled=false", "zookeeper.servers=zookeeper:2181")


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    program = str(TOOL) if TOOL.exists() else shutil.which("helm") or "helm"
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)


def rendered(*values: str) -> list[dict[str, Any]]:
    sets = [word for value in values for word in ("--set-json" if "=[" in value else "--set", value)]
    done = helm("template", "prod", str(CHART), "--kube-version", "1.30", *sets)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


def one(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (each,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return each


def container(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (each,) = one(found, kind, name)["spec"]["template"]["spec"]["containers"]
    return dict(each)


def test_helm_finds_nothing_to_complain_about() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "values",
    [
        (),
        EXISTING,
        ("bookie.antiAffinity=preferred", "bookie.journal.storageClass=fast", 'exporter.logs=["a*"]'),
        ("autorecovery.enabled=false", "exporter.enabled=false", "zookeeper.replicas=1"),
    ],
)
def test_what_is_rendered_is_valid_for_kubernetes(values: tuple[str, ...]) -> None:
    found = rendered(*values)
    for each in found:
        kubernetes_validate.validate(each, "1.30", strict=True)
        if "selector" in each.get("spec", {}) and "template" in each["spec"]:
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
    kinds = [(each["kind"], each["metadata"]["name"].removeprefix("prod-")) for each in found]
    assert len(set(kinds)) == len(kinds)
    wanted = {("StatefulSet", "bookie"), ("PodDisruptionBudget", "bookie"), ("Job", "prepare-1")}
    assert wanted <= set(kinds)
    assert (("StatefulSet", "zookeeper") in kinds) == ("zookeeper.enabled=false" not in values)
    assert (("Deployment", "exporter") in kinds) == ("exporter.enabled=false" not in values)


def test_the_chart_runs_a_bookie_as_the_manifests_do() -> None:
    found, plain = rendered(*EXISTING), list(manifests())
    ours, theirs = (
        container(found, "StatefulSet", "prod-bookie"),
        container(plain, "StatefulSet", "dlog-bookie"),
    )
    assert {key: ours[key] for key in theirs.keys() - {"image"}} == {
        key: theirs[key] for key in theirs.keys() - {"image"}
    }
    config = "data", "bk_server.conf"
    texts = [
        one(where, "ConfigMap", name)[config[0]][config[1]]
        for where, name in ((found, "prod-bookie"), (plain, "dlog-bookie"))
    ]
    assert texts[0] == texts[1]
    sets = [one(found, "StatefulSet", "prod-bookie"), one(plain, "StatefulSet", "dlog-bookie")]
    for key in ("podManagementPolicy", "updateStrategy", "persistentVolumeClaimRetentionPolicy", "replicas"):
        assert sets[0]["spec"][key] == sets[1]["spec"][key], key
    grace = [each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for each in sets]
    assert grace == [120, 120]
    budgets = [
        one(found, "PodDisruptionBudget", "prod-bookie"),
        one(plain, "PodDisruptionBudget", "dlog-bookie"),
    ]
    assert [each["spec"]["maxUnavailable"] for each in budgets] == [1, 1]
    recovery = [
        container(where, "Deployment", name)["args"]
        for where, name in ((found, "prod-autorecovery"), (plain, "dlog-autorecovery"))
    ]
    assert recovery[0] == recovery[1]


def test_each_command_exists_and_runs_as_no_root() -> None:
    commands = []
    for each in rendered('exporter.logs=["orders*","refunds*"]'):
        pod = each.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        assert pod["securityContext"]["runAsNonRoot"], each["metadata"]["name"]
        for run in [*pod.get("initContainers", []), *pod["containers"]]:
            assert run["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            if run["image"] == "registry.example.org/dlog:0.1.0":
                assert run["securityContext"]["readOnlyRootFilesystem"]
                if "command" not in run:
                    commands.append(parsed(run["args"]))
    assert sorted(commands) == ["autorecovery", "bookie", "exporter", "log list"]


def test_each_program_uses_the_members_of_the_zookeeper_of_the_chart() -> None:
    found = rendered()
    service = one(found, "StatefulSet", "prod-zookeeper")["spec"]["serviceName"]
    hosts = ";".join(f"prod-zookeeper-{number}.{service}:2181" for number in range(3))
    text = one(found, "ConfigMap", "prod-bookie")["data"]["bk_server.conf"]
    assert text.startswith(f"metadataServiceUri=zk+hierarchical://{hosts}/ledgers\n")
    assert f"distributedlog://{hosts}/dlog" in container(found, "Deployment", "prod-exporter")["args"]
    (variable,) = [
        each["value"]
        for each in container(found, "StatefulSet", "prod-zookeeper")["env"]
        if each["name"] == "ZOO_SERVERS"
    ]
    assert variable.split() == [
        f"server.{number + 1}=prod-zookeeper-{number}.{service}:2888:3888;2181" for number in range(3)
    ]


def test_settings_of_bookies_are_known_and_a_change_restarts_them(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, found = rendered(), rendered("bookie.settings.diskUsageThreshold=0.9")
    file = tmp_path_factory.mktemp("config") / "bk_server.conf"
    file.write_text(one(found, "ConfigMap", "prod-bookie")["data"]["bk_server.conf"])
    assert "\ndiskUsageThreshold=0.9\n" in file.read_text()
    assert main(["config", "check", str(file), "--strict"]) == 0, capsys.readouterr()
    templates = [one(each, "StatefulSet", "prod-bookie")["spec"]["template"] for each in (plain, found)]
    assert templates[0]["metadata"] != templates[1]["metadata"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("zookeeper.enabled=false",), "name the ZooKeeper to use"),
        (("bookie.antiAffinity=never",), "bookie.antiAffinity is required or preferred"),
    ],
)
def test_values_that_cannot_work_are_refused(values: tuple[str, ...], message: str) -> None:
    sets = [word for value in values for word in ("--set", value)]
    done = helm("template", "prod", str(CHART), "--kube-version", "1.30", *sets)
    assert done.returncode != 0
    assert message in done.stderr
