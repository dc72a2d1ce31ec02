"""The files under deploy/: read by what reads them, and nginx run for real with two replicas."""

import asyncio
import io
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_manifests_agree_with_each_other_and_with_the_service(predictor):
    kinds = {}
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        item = yaml.safe_load(path.read_text("utf-8"))
        kinds[item["kind"]] = item
    template = kinds["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    labels = template["metadata"]["labels"]
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["Service"]["spec"]["selector"] == labels
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["ports"][0]["name"] == kinds["Service"]["spec"]["ports"][0]["targetPort"]
    scaler = kinds["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == kinds["Deployment"]["metadata"]["name"]
    from paumer.serve.service import Service

    metric = scaler["metrics"][0]["pods"]["metric"]["name"]
    assert f"\n{metric} 0.0".encode() in Service(predictor).watch.metrics()


@pytest.mark.parametrize(
    "path", sorted((DEPLOY / "kubernetes").glob("*.yaml")), ids=lambda p: p.stem
)
def test_manifests_are_what_kubernetes_takes(path):
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate checks it")
    manifest = yaml.safe_load(path.read_text("utf-8"))
    newest = kubernetes.latest_version()
    kubernetes.validate(manifest, newest, strict=True)
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate({**manifest, "specs": {}}, newest, strict=True)


def test_the_image_installs_what_is_there():
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    for line in re.findall(r"^COPY (.+) \S+$", text, re.M):
        assert all((DEPLOY.parent / name).exists() for name in line.split())


@pytest.fixture
def proxy(tmp_path):
    """A function that starts nginx as deployed, in front of two ports; its address."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    started = []

    def give(first, second):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        text = (DEPLOY / "nginx.conf").read_text("utf-8")
        for old, new in {
            "127.0.0.1:8001": f"127.0.0.1:{first}",
            "127.0.0.1:8002": f"127.0.0.1:{second}",
            "127.0.0.1:8000": f"127.0.0.1:{port}",
            "/tmp/nginx-paumer.pid": str(tmp_path / "pid"),
            "worker_processes auto": "daemon off; worker_processes 1",
            "http {": f"http {{ client_body_temp_path {tmp_path}/body; proxy_temp_path "
            f"{tmp_path}/proxy; fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; "
            f"scgi_temp_path {tmp_path}/s;",
        }.items():
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "nginx.conf"
        file.write_text(text)
        process = subprocess.Popen([nginx, "-c", str(file), "-p", str(tmp_path)])
        started.append(process)
        url = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                httpx.get(f"{url}/healthz")
                return url
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError("nginx does not start")

    yield give
    for process in started:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_a_replica_killed_under_load_loses_no_answer(proxy, replica, serving, predictor, png):
    first, port = replica()
    url = proxy(port, serving(target=2.0).port)
    expected = predictor.predict(np.array(Image.open(io.BytesIO(png())))).labels

    async def load():
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:

            async def some(number):
                answers = []
                for turn in range(15):
                    if number == 0 and turn == 5:
                        first.kill()
                    options = {"mode": "none"}
                    answers.append(await client.post("/v1/segment", content=png(), params=options))
                return answers

            return sum(await asyncio.gather(*(some(n) for n in range(4))), [])  # noqa: RUF017

    answers = asyncio.run(load())
    assert len(answers) == 60
    assert {answer.status_code for answer in answers} <= {200, 429, 502, 503}
    good = [answer for answer in answers if answer.status_code == 200]
    assert len(good) >= 56
    for answer in good:
        assert np.array_equal(np.array(Image.open(io.BytesIO(answer.content))), expected)
    large = httpx.post(f"{url}/v1/segment", content=bytes(21 * 2**20))
    assert large.status_code == 413
