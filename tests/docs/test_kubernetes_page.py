"""examples/kubernetes and examples/container: valid, and true of the programs that they run."""

from __future__ import annotations

import random
import re
import shlex
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import trio
import yaml

from bookie.http.guard import OPEN_PATHS
from bookie.http.routes.table import ROUTES
from dlog.cli.main import main
from dlog.cluster.ports import free_ports
from tests.docs.test_shell_page import command_of
from tests.fakes.zookeeper_server import open_zookeeper_process
from tests.places import ROOT
from tests.unit.bookie.test_bookie_process import started

PLACE = ROOT / "examples" / "kubernetes"
FILES = sorted(PLACE.glob("*.yaml"))
CONTAINERFILE = (ROOT / "examples" / "container" / "Containerfile").read_text("utf-8")


def documents() -> list[dict[str, Any]]:
    return [each for file in FILES for each in yaml.safe_load_all(file.read_text("utf-8"))]


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def configuration() -> str:
    text: str = one("ConfigMap", "dlog-bookie")["data"]["bk_server.conf"]
    return text


def settings() -> dict[str, str]:
    lines = [line for line in configuration().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def pods() -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in documents() if "template" in each.get("spec", {})]


def containers() -> list[dict[str, Any]]:
    return [each for pod in pods() for each in [*pod.get("initContainers", []), *pod["containers"]]]


def parsed(words: list[str]) -> str:
    """The name of the command that the words run; a wrong option raises."""
    names: list[str] = []
    while isinstance(command_of(names), click.Group) and command_of([*names, words[len(names)]]) is not None:
        names.append(words[len(names)])
    command = command_of(names)
    assert command is not None, words
    command.make_context(names[-1], words[len(names) :])
    return " ".join(names)


@pytest.mark.slow
def test_each_manifest_is_valid_for_kubernetes() -> None:
    assert [each["kind"] for each in documents()] == [
        "Deployment",
        "ConfigMap",
        "Service",
        "PodDisruptionBudget",
        "StatefulSet",
        "Job",
    ]
    for each in documents():
        kubernetes_validate.validate(each, "1.30", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**documents()[0], "sepc": {}}, "1.30", strict=True)


def test_each_command_of_the_manifests_exists_with_its_options() -> None:
    commands = [each["args"] for each in containers() if "command" not in each]
    (shell,) = [each for each in containers() if "command" in each]
    assert shell["command"] == ["sh", "-c"]
    found = re.fullmatch(r'dlog (bookies init) "\$SERVICE" \|\| \[ \$\? -eq 4 \]', shell["args"][0])
    assert found is not None
    commands.append([*found[1].split(), shell["env"][0]["value"]])
    assert sorted(parsed(words) for words in commands) == [
        "autorecovery",
        "bookie",
        "bookies init",
        "log list",
    ]


@pytest.mark.slow
def test_the_configuration_is_known_and_agrees_with_the_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text(configuration())
    assert main(["config", "check", str(file), "--strict"]) == 0, capsys.readouterr()
    stateful_set = one("StatefulSet", "dlog-bookie")
    (bookie,) = stateful_set["spec"]["template"]["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in bookie["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in stateful_set["spec"]["volumeClaimTemplates"]}
    volumes = {each["name"] for each in stateful_set["spec"]["template"]["spec"]["volumes"]}
    assert claims == {"journal", "ledgers"}
    assert set(mounts) == claims | volumes
    values = settings()
    assert (values["journalDirectories"], values["ledgerDirectories"]) == (
        mounts["journal"],
        mounts["ledgers"],
    )
    ports = {each["name"]: str(each["containerPort"]) for each in bookie["ports"]}
    assert ports == {"bookie": values["bookiePort"], "http": values["httpServerPort"]}
    service = one("Service", "dlog-bookie")
    assert {each["name"]: str(each["port"]) for each in service["spec"]["ports"]} == ports
    assert service["metadata"]["name"] == stateful_set["spec"]["serviceName"]
    assert mounts["config"] + "/bk_server.conf" in bookie["args"]


def test_the_probes_ask_paths_that_need_no_token() -> None:
    (bookie,) = one("StatefulSet", "dlog-bookie")["spec"]["template"]["spec"]["containers"]
    assert {route.path for route in ROUTES} >= OPEN_PATHS
    probes = {name: each["httpGet"] for name, each in bookie.items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    assert {each["path"] for each in probes.values()} <= OPEN_PATHS
    assert {each["port"] for each in probes.values()} == {"http"}


def test_labels_select_the_pods_that_they_mean() -> None:
    labels = one("StatefulSet", "dlog-bookie")["spec"]["template"]["metadata"]["labels"]
    budget, service = one("PodDisruptionBudget", "dlog-bookie"), one("Service", "dlog-bookie")
    assert budget["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    for each in documents():
        if "selector" in each.get("spec", {}) and "template" in each["spec"]:
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]


def test_image_and_manifests_have_one_user_and_no_root() -> None:
    (uid,) = set(re.findall(r"--uid (\d+)", CONTAINERFILE))
    assert f"USER {uid}:{uid}" in CONTAINERFILE
    assert {pod["securityContext"]["runAsUser"] for pod in pods()} == {int(uid)}
    assert all(pod["securityContext"]["runAsNonRoot"] for pod in pods())
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in containers())
    assert len({each["image"] for each in containers()}) == 1


def test_what_the_image_is_made_of_is_in_the_checkout() -> None:
    sources = re.findall(r"^COPY ([^-].*) \S+$", CONTAINERFILE, re.MULTILINE)
    names = [name for line in sources for name in shlex.split(line)]
    assert {"dlog", "ledger", "bookie", "namespace", "spark_integration", "pyproject.toml"} <= set(names)
    assert [name for name in names if not (ROOT / name).exists()] == []
    assert 'ENTRYPOINT ["dlog"]' in CONTAINERFILE


@pytest.mark.cluster
@pytest.mark.zookeeper
async def test_the_configuration_of_the_manifests_runs_a_bookie_that_answers_the_probes(
    tmp_path: Path,
) -> None:
    service_port, http_port = free_ports(2, random.Random(), host="127.0.0.1")
    with trio.fail_after(120):
        async with open_zookeeper_process(tmp_path / "zookeeper") as server:
            text = configuration().replace("zookeeper:2181", server.hosts)
            text = text.replace("=/journal", f"={tmp_path}/journal").replace(
                "=/ledgers\n", f"={tmp_path}/data\n"
            )
            text = text.replace("=3181", f"={service_port}").replace("=8080", f"={http_port}")
            text = text.replace("=0.0.0.0", "=127.0.0.1")
            file = tmp_path / "bk_server.conf"
            # This machine's name may be an address of its own only.
            file.write_text(
                f"{text}\nallowLoopback=true\ndiskUsageThreshold=1.0\ndiskUsageWarnThreshold=1.0\n"
            )
            (shell,) = [each for each in containers() if "command" in each]
            uri = shell["env"][0]["value"].replace("zookeeper:2181", server.hosts)
            command = [sys.executable, "-m", "dlog.cli.main", "bookies", "init", uri]
            ended = [await trio.run_process(command, check=False, capture_stderr=True) for _ in range(2)]
            assert [each.returncode for each in ended] == [0, 4]
            async with started(file) as bookie:
                await bookie.wait_ready()
                for path in ("/heartbeat", "/api/v1/bookie/is_ready", "/metrics"):
                    url = f"http://127.0.0.1:{http_port}{path}"
                    reply = await trio.to_thread.run_sync(urllib.request.urlopen, url)
                    assert reply.status == 200
                bookie.process.send_signal(signal.SIGTERM)
                assert await bookie.wait_ended() == 0, bookie.log
