"""The files in deploy/: they pass linters and schemas, agree with each other, and their commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from penstock import SyncApp
from penstock.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
KUBERNETES_VERSION = "1.32"
TIMEOUT_S = 30


def kubernetes_objects() -> list[dict[str, Any]]:
    """Return the objects of all files that Kustomize reads."""
    wanted = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    return [one for name in wanted for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())]


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# Linters and schemas


@pytest.mark.skipif(not (BIN / "hadolint").exists(), reason="hadolint has wheels for Linux only")
def test_the_dockerfile_passes_hadolint(tmp_path: Path) -> None:
    done = subprocess.run([BIN / "hadolint", "--no-color", DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "Dockerfile"
    bad.write_text(DOCKERFILE.replace('CMD ["penstock", "worker"]', "CMD penstock worker"))
    assert subprocess.run([BIN / "hadolint", bad], capture_output=True).returncode != 0


def test_the_image_does_not_run_as_root() -> None:
    user = re.findall(r"^USER (\S+)", DOCKERFILE, flags=re.M)
    assert user
    assert int(user[-1]) > 0
    assert re.search(r"^HEALTHCHECK ", DOCKERFILE, flags=re.M)


def test_compose_matches_its_schema() -> None:
    path = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(path.read_text("utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [problem.message for problem in validator.iter_errors(COMPOSE)] == []
    assert list(validator.iter_errors({"services": {"x": {"comand": "typo"}}}))


@pytest.mark.parametrize("one", kubernetes_objects(), ids=lambda one: f"{one['kind']}/{one['metadata']['name']}")
def test_objects_match_the_schemas_of_kubernetes(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, KUBERNETES_VERSION, strict=True)
    broken = json.loads(json.dumps(one))
    broken["metadata"]["nmae"] = "typo"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES_VERSION, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders Kustomize; it is not installed")
def test_kustomize_renders_every_object() -> None:
    done = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rendered = [one for one in yaml.safe_load_all(done.stdout) if one is not None]
    assert len(rendered) == len(kubernetes_objects()) + 1  # the generated ConfigMap
    (config,) = (one for one in rendered if one["kind"] == "ConfigMap")
    used = {
        source["configMapRef"]["name"]
        for one in rendered
        if one["kind"] in ("Deployment", "Job")
        for source in one["spec"]["template"]["spec"]["containers"][0]["envFrom"]
    }
    assert used == {config["metadata"]["name"]}
    for one in rendered:
        if one["kind"] not in ("Namespace",):
            kubernetes_validate.validate(one, KUBERNETES_VERSION, strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace("/srv/penstock/.venv/bin/penstock", str(BIN / "penstock"))
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *sorted(map(str, tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    (tmp_path / UNITS[0].name).write_text(UNITS[0].read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    assert "Unknown key" in subprocess.run(command, capture_output=True, text=True, timeout=60).stderr


# They agree with each other and with the settings


def test_every_variable_is_a_setting() -> None:
    text = " ".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    names = set(re.findall(r"\bPENSTOCK_[A-Z_]+", text)) - {"PENSTOCK_PASSWORD", "PENSTOCK_IMAGE"}
    known = {f"PENSTOCK_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert names <= known


def test_nothing_is_killed_within_the_grace_period() -> None:
    grace = seconds(COMPOSE["x-app"]["environment"]["PENSTOCK_GRACE"])
    assert seconds(COMPOSE["x-app"]["stop_grace_period"]) > grace
    deployments = [one for one in kubernetes_objects() if one["kind"] == "Deployment"]
    assert all(one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > grace for one in deployments)
    worker = (DEPLOY / "systemd" / "penstock-worker@.service").read_text()
    stop, own = re.search(r"^TimeoutStopSec=(\d+)", worker, flags=re.M), re.search(r"PENSTOCK_GRACE=(\d+)s", worker)
    assert stop is not None
    assert own is not None
    assert int(stop[1]) > int(own[1])


def test_every_pod_has_probes_on_routes_that_exist() -> None:
    for one in kubernetes_objects():
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            paths = {
                name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
            }
            assert paths == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
            assert container["command"][:2] == ["penstock", "serve"]


def test_the_scaler_reads_a_route_and_scales_a_deployment_that_exist() -> None:
    from penstock.http.routes import queues

    objects = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "keda.yaml").read_text()))
    deployments = {one["metadata"]["name"]: one for one in kubernetes_objects() if one["kind"] == "Deployment"}
    served = {}
    for name, one in deployments.items():
        for variable in one["spec"]["template"]["spec"]["containers"][0]["env"]:
            if variable["name"] == "PENSTOCK_QUEUES":
                served[name] = variable["value"]
    assert "/api/_queue/{queue}" in {endpoint.path for endpoint in queues.routes.endpoints}
    for one in objects:
        if one["kind"] == "ScaledObject":
            (trigger,) = one["spec"]["triggers"]
            queue = trigger["metadata"]["url"].rpartition("/api/_queue/")[2]
            assert served[one["spec"]["scaleTargetRef"]["name"]] == queue
            assert trigger["metadata"]["valueLocation"] == "counts.waiting"
    assert {"TriggerAuthentication", "ScaledObject"} == {one["kind"] for one in objects}


# Their commands run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "workers").mkdir()
    text = "from penstock import job\n\n@job(queue='default')\nasync def work(n: int) -> int:\n    return n\n"
    (tmp_path / "workers" / "default.py").write_text(text)
    return tmp_path


@pytest.fixture
def manager(project: Path) -> Iterator[socket.socket]:
    """What systemd is for a service: the socket that NOTIFY_SOCKET names."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(project / "notify"))
    listening.settimeout(TIMEOUT_S)
    yield listening
    listening.close()


def start(project: Path, command: list[str], **environment: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    own |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PENSTOCK_URL": f"sqlite:///{project}/store.db"}
    return subprocess.Popen(
        command, cwd=project, env=own | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out


def count_workers(project: Path) -> int:
    with SyncApp(f"sqlite:///{project}/store.db", handlers=()) as app:
        return len(app.workers.list())


def exec_start(unit: Path) -> list[str]:
    found = re.search(r"^ExecStart=(.+)$", unit.read_text(), flags=re.M)
    assert found is not None
    program, *arguments = found[1].split()
    return [str(BIN / Path(program).name), *arguments]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_reports_that_it_is_ready_alive_and_stopping(unit: Path, project: Path, manager: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": str(project / "notify"), "WATCHDOG_USEC": "100000", "PENSTOCK_PORT": "0"}
    process = start(project, exec_start(unit), **variables)
    try:
        assert manager.recv(100) == b"READY=1"
        assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        finish(process)
        received = {manager.recv(100)}
        while b"STOPPING=1" not in received:
            received.add(manager.recv(100))
        assert received <= {b"WATCHDOG=1", b"STOPPING=1"}
    finally:
        process.kill()
        process.communicate()


def test_several_processes_report_once(project: Path, manager: socket.socket) -> None:
    process = start(project, ["penstock", "worker", "--processes", "2"], NOTIFY_SOCKET=str(project / "notify"))
    try:
        assert manager.recv(100) == b"READY=1"
        while count_workers(project) < 2:  # they have installed their signal handlers
            assert process.poll() is None
        finish(process)
        assert manager.recv(100) == b"STOPPING=1"
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
    finally:
        process.kill()
        process.communicate()


def test_the_server_of_a_pod_answers_its_probes_and_the_health_check(project: Path) -> None:
    subprocess.run(
        [BIN / "penstock", "tokens", "add", "ops", "--role", "admin", "--url", f"sqlite:///{project}/store.db"],
        check=True, capture_output=True, cwd=project,
    )  # fmt: skip
    command = next(one for one in kubernetes_objects() if one["metadata"]["name"] == "penstock-worker")
    command = command["spec"]["template"]["spec"]["containers"][0]["command"]
    process = start(project, [*command, "--json"], PENSTOCK_HOST="0.0.0.0", PENSTOCK_PORT="0")
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["address"].rpartition(":")[2]
        for path in ("/health", "/ready"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S) as answer:
                assert answer.status == 200
        check = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.+?\])$", DOCKERFILE, flags=re.S | re.M)[1])  # type: ignore[index]
        healthy = subprocess.run([sys.executable, *check[1:]], env={"PENSTOCK_PORT": port}, capture_output=True)
        assert healthy.returncode == 0, healthy.stderr
        finish(process)
        dead = subprocess.run([sys.executable, *check[1:]], env={"PENSTOCK_PORT": port}, capture_output=True)
        assert dead.returncode != 0
    finally:
        process.kill()
        process.communicate()


def test_the_commands_of_compose_exist() -> None:
    from penstock.cli.command_table import COMMANDS

    used = [service["command"] for service in COMPOSE["services"].values() if "command" in service]
    used += [json.loads(line) for line in re.findall(r"^CMD (\[.+\])", DOCKERFILE, flags=re.M)]
    assert {command[0] for command in used} == {"penstock"}
    assert {command[1] for command in used} == {"migrate", "serve", "worker"} <= set(COMMANDS)
