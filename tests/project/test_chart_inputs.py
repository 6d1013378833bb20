"""The Helm chart's values: no secret gets into a manifest, and no value changes the structure of an object."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import yaml

from deploy.manifests import CHART
from deploy.manifests.render import template
from deploy.manifests.values import read
from exporter.config.schema import catalogue
from tests.support.charts import LOADER, VALUES, need_helm, refusal, render

pytestmark = [pytest.mark.linux("is about Kubernetes"), pytest.mark.peer("helm")]

Path = tuple[str | int, ...]
SECRET: Final = "aHVudGVyMmh1bnRlcjI="
KEYS: Final = f"SharedAccessKeyName=a;SharedAccessKey={SECRET}"
ENDPOINT: Final = "Endpoint=sb://ns.servicebus.windows.net/"
SECRETS: Final = {
    "connection string": f"{ENDPOINT};{KEYS}",
    "with a hub": f"{ENDPOINT};{KEYS};EntityPath=hub",
    "without its end point": KEYS,
    "upper case": f"{ENDPOINT};{KEYS}".upper(),
    "lower case": f"{ENDPOINT};{KEYS}".lower(),
    "several lines": f"{ENDPOINT};{KEYS}".replace(";", ";\n  "),
    "broken words": f"{ENDPOINT};{KEYS}".replace("Access", "Acc\n  ess"),
    "with blanks": f"{ENDPOINT} ; Shared Access Key Name = a ; Shared Access Key = {SECRET}",
    "encoded": f"{ENDPOINT};{KEYS}".replace("=", "%3D"),
    "in quotes": f"'\"{ENDPOINT};{KEYS}\"'",
    "SAS token": f"SharedAccessSignature sr=sb%3a%2f%2fns&sig={SECRET}&se=1893456000&skn=a",
    "storage account": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET}",
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    "token": f"eyJhbGciOiJIUzI1NiJ9.{SECRET.rstrip('=')}.c2lnbmF0dXJl",
    "user of a URL": f"https://user:{SECRET}@collector:4318",
    "password with slashes": f"https://user:a/b/{SECRET}@collector:4318",
    "password with an at sign": f"https://user:a@{SECRET}@collector:4318",
    "encoded at sign": f"https://user:{SECRET}%40collector:4318",
    "upper case URL": f"HTTPS://USER:{SECRET}@COLLECTOR:4318",
    "query of a URL": f"https://collector:4318/?sig={SECRET}",
    "second in the query": f"https://collector:4318/?a=b&api_key={SECRET}",
    "query in upper case": f"https://collector:4318/?TOKEN={SECRET}",
}
OF_THE_AGENT: Final = {
    "user without a scheme": f"user:{SECRET}@collector:4318",
    "any query": f"https://collector:4318/?x={SECRET}",
    "named": f"api-key={SECRET}",
    "named with a colon": f"Authorization: Bearer {SECRET}",
    "password": f"-Dproxy.password={SECRET}",
}
"""Texts that are secrets only in a setting or in a variable of the agent."""

FULL: Final[dict[str, Any]] = {
    "nameOverride": "agent",
    "fullnameOverride": "agents",
    "image": {"repository": "registry.example.com/agent", "tag": "1"},
    "imagePullSecrets": [{"name": "registry"}],
    "approval": {"mode": "enforce", "holdConfigMap": "hold", "readyFiles": True},
    "eventFiles": True,
    "settings": {
        "source": {"vm_name": "vm-1", "tags": ["owner"]},
        "approval": {"rules": [{"name": "short", "event_type": ["Freeze"], "max_duration": 8, "settle": "30s"}]},
        "event_hubs": {"event_hub": "events", "custom_endpoint": "sb://127.0.0.1:5671"},
        "otlp": {"endpoint": "http://collector:4318", "service_name": "agent"},
        "web": {"dashboard_url": "https://grafana.example/d/vm?var-instance={vm_name}"},
        "recording": {"path": "/var/lib/azure-scheduled-events-exporter/recording.jsonl"},
    },
    "eventHubs": {"connectionStringSecret": {"name": "event-hubs", "key": "connection-string"}},
    "otlp": {"headersSecret": {"name": "otlp", "key": "headers"}},
    "web": {
        "host": "192.0.2.1",
        "configSecret": {"name": "web", "key": "web.yml"},
        "tls": True,
        "password": True,
        "credentialsSecret": "scrape",
    },
    "log": {"format": "json"},
    "serviceAccount": {"create": True, "name": "agent", "annotations": {"example.com/a": "b"}},
    "resources": {"limits": {"memory": "384Mi"}},
    "outbox": {"hostPath": "/var/lib/agent"},
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
    "tolerations": [{"key": "spot", "operator": "Equal", "value": "yes"}],
    "nodeSelector": {"agentpool": "spot"},
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "type", "operator": "In", "values": ["a"]}]}}
    ]}},
    "priorityClassName": "system-node-critical",
    "labels": {"team": "sre"},
    "podLabels": {"tier": "node"},
    "podAnnotations": {"example.com/a": "b"},
    "extraEnv": [
        {"name": "SSL_CERT_FILE", "value": "/run/ca/ca.crt"},
        {"name": "AZURE_CLIENT_SECRET", "valueFrom": {"secretKeyRef": {"name": "azure", "key": "secret"}}},
    ],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/run/ca"}],
    "podMonitor": {
        "enabled": True,
        "apiVersion": "monitoring.coreos.com/v1",
        "interval": "15s",
        "namespace": "monitoring",
        "labels": {"release": "prometheus"},
        "tlsConfig": {"serverName": "agent.example.com"},
        "relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
        "metricRelabelings": [{"action": "drop", "regex": "go_.*"}],
    },
    "windows": {
        "enabled": True,
        "image": {"repository": "registry.example.com/agent-windows", "tag": "1"},
        "runAsUserName": "NT AUTHORITY\\Local service",
        "outboxHostPath": "C:\\ProgramData\\agent",
        "nodeSelector": {"agentpool": "win"},
        "tolerations": [{"operator": "Exists", "key": "os"}],
        "resources": {"limits": {"memory": "384Mi"}},
    },
    "networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
}  # fmt: skip
"""A harmless text for every value that takes one, except for values that exclude each other."""
FURTHER: Final[dict[str, dict[str, Any]]] = {
    "identity": {
        "workloadIdentity": {"clientId": "id", "tenantId": "tenant"},
        "settings": {"event_hubs": {"fully_qualified_namespace": "ns.servicebus.windows.net"}},
    },
    "text": {"settingsText": '[log]\nlevel = "debug"\n'},
    "digest": {"image": {"digest": "sha256:" + "0" * 64}},
    "handshake": {
        "handshake": {
            "enabled": True,
            "image": {"repository": "registry.example.com/kubectl", "tag": "1", "digest": "sha256:" + "0" * 64},
            "eventTypes": ["Reboot", "Preempt"],
            "resources": {"limits": {"memory": "256Mi"}},
        },
    },
    "rules and dashboards": {
        "prometheusRule": {
            "enabled": True,
            "grafanaUrl": "https://grafana.example.com/",
            "labels": {"release": "prometheus"},
        },
        "dashboards": {
            "enabled": True,
            "labels": {"grafana_dashboard": "1"},
            "annotations": {"grafana_folder": "Azure"},
            "grafanaOperator": {"enabled": True, "instanceSelector": {"matchLabels": {"a": "b"}}, "folder": "Azure"},
        },
    },
}


def texts(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the place of each text in these values."""
    if isinstance(value, str):
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from texts(inner, (*path, key))


def at(values: Any, path: Path) -> Any:
    return functools.reduce(lambda inner, key: inner[key], path, values)


def changed(values: dict[str, Any], path: Path, value: object) -> dict[str, Any]:
    """Return the values with another text in this place."""
    made = copy.deepcopy(values)
    at(made, path[:-1])[path[-1]] = value
    return made


PLACES: Final[dict[str, tuple[dict[str, Any], Path]]] = {
    ".".join(map(str, path)): (values, path) for values in (FULL, *FURTHER.values()) for path in texts(values)
}
"""Return every place for a text, with the values around it."""


def documents(values: Mapping[str, Any]) -> list[Any] | str:
    """Return what Helm renders with these values; if it rejects them, its message."""
    need_helm()
    try:
        return [document for document in yaml.load_all(template(values), Loader=LOADER) if document]
    except subprocess.CalledProcessError as error:
        return str(error.stderr)


def shape(value: Any) -> Any:
    """Return keys and types, without the content of texts; the settings' TOML is parsed."""
    if isinstance(value, dict):
        return {key: _settings(inner) if key == "config.toml" else shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def _settings(text: str) -> Any:
    """The chart doesn't parse TOML: the agent reports invalid text."""
    try:
        return shape(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return {"log": {"level": "str"}}


@functools.cache
def harmless(values: str) -> Any:
    """Return the structure of what Helm renders with these values, which it accepts."""
    found = documents(json.loads(values))
    assert not isinstance(found, str), found
    return shape(found)


def test_every_value_of_the_chart_is_tried() -> None:
    """Each key of values.yaml that takes a text, or a map of texts, has a place here."""
    tried = {".".join(str(part) for part in path[:length]) for _, path in PLACES.values() for length in range(1, 9)}
    values = [
        value for top in read((CHART / "values.yaml").read_text("utf-8")) for value in top.walk() if not value.children
    ]
    named = {value.path for value in values if not isinstance(value.default, bool | int)}
    assert {path for path in named if path not in tried} <= {"image.pullPolicy", "windows.image.digest"}


# -- a value stays a value

HOSTILE: Final = (
    "1e3",  # a number, if it is not quoted
    "{evil: 'a' , \"b\": 'c #d: {{ fail `evil` }}",
    "a\n          evil: true\n---\nkind: Evil\r  evil: true\x85  evil: true\u2028  evil: true",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_value_never_changes_the_structure(place: str) -> None:
    """For any text, Helm rejects it with a message, or the objects have the same keys and the same types."""
    values, path = PLACES[place]
    expected = harmless(json.dumps(values))
    for text in HOSTILE:
        found = documents(changed(values, path, text))
        if isinstance(found, str):
            assert "error converting YAML" not in found, found
            assert "parse error" not in found, found
        else:
            assert shape(found) == expected, (place, text)


@pytest.mark.parametrize(
    "where", ["labels", "podLabels", "podAnnotations", "nodeSelector", "serviceAccount.annotations"]
)
@pytest.mark.parametrize("key", ["a\n    evil: true\n    b", "a b", "", "a/b/c", 'a": "b'])
def test_an_invalid_label_name_is_rejected(where: str, key: str) -> None:
    """The chart rejects a key of labels or annotations that Kubernetes would reject."""
    path = where.split(".")
    values: dict[str, Any] = {path[-1]: {key: "a"}}
    for part in reversed(path[:-1]):
        values = {part: values}
    assert path[-1] in refusal(values)


REFUSED: Final[dict[str, dict[str, Any]]] = {
    "image.repository": {"image": {"repository": "a\n          evil: true"}},
    "image.tag": {"image": {"tag": "1\n          evil: true"}},
    "windows.image.repository": {"windows": {"enabled": True, "image": {"repository": "a b", "tag": "1"}}},
    "nameOverride": {"nameOverride": "a: b"},
    "fullnameOverride": {"fullnameOverride": "A"},
    "serviceAccount.name": {"serviceAccount": {"name": "a\nb"}},
    "podMonitor.namespace": {"podMonitor": {"enabled": True, "namespace": "a b"}},
    "labels": {"labels": {"a": "b\nc: d"}},
    "nodeSelector": {"nodeSelector": {"a": "b c"}},
    "eventHubs.connectionStringSecret.key": {"eventHubs": {"connectionStringSecret": {"name": "a", "key": "../a"}}},
    "extraEnv": {"extraEnv": [{"name": "A B", "value": "c"}]},
    "outbox.hostPath": {"outbox": {"hostPath": "/data/../etc"}},
}


@pytest.mark.parametrize("where", REFUSED)
def test_names_that_kubernetes_rejects_are_rejected(where: str) -> None:
    """Names and references are checked against their grammar before anything is rendered."""
    assert where in refusal(REFUSED[where])


@pytest.mark.parametrize(
    "path", ["/", "//", "/etc", "/etc/", "/var/lib", "/var/lib/kubelet", "/usr/./", "/run", "/mnt"]
)
def test_a_system_directory_of_the_node_is_rejected_for_the_outbox(path: str) -> None:
    """The init container would give it to the agent's user, and close it to all others."""
    assert "outbox.hostPath" in refusal({"outbox": {"hostPath": path}})


# -- no secret gets into a manifest


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_rejected_in_every_value(place: str) -> None:
    """The message names the value and does not show the secret."""
    values, path = PLACES[place]
    refused(changed(values, path, SECRETS["several lines"]), str(path[0]))


def refused(values: Mapping[str, Any], where: str) -> None:
    """Assert that Helm's message names the place and does not show the secret."""
    sentence = refusal(values)
    assert where in sentence, sentence
    assert SECRET.lower().rstrip("=") not in sentence.lower(), sentence


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_of_any_form_is_rejected(secret: str) -> None:
    """In the settings by section and as text, in a variable, and in an annotation."""
    text = SECRETS[secret]
    for path in (
        "extraEnv.0.value",
        "settings.otlp.endpoint",
        "settings.web.dashboard_url",
        "podAnnotations.example.com/a",
    ):
        refused(changed(*PLACES[path], text), path.partition(".")[0])
    refused({"settingsText": f"[otlp]\nendpoint = {json.dumps(text)}\n"}, "settingsText")
    refused({"settingsText": f'[web]\ndashboard_url = """\n{text}"""\n'}, "settingsText")


@pytest.mark.parametrize("secret", OF_THE_AGENT)
def test_a_secret_in_the_agents_settings_is_rejected(secret: str) -> None:
    """More texts are secrets there than in an annotation."""
    text = OF_THE_AGENT[secret]
    for path in ("extraEnv.0.value", "settings.otlp.endpoint", "settings.source.vm_name"):
        refused(changed(*PLACES[path], text), path.partition(".")[0])
    refused({"settingsText": f"[otlp]\nendpoint = {json.dumps(text)}\n"}, "settingsText")


@pytest.mark.parametrize("name", ["podAnnotations", "labels", "nodeSelector"])
def test_a_secret_in_a_key_is_rejected(name: str) -> None:
    """As in a value, and the message does not show it."""
    sentence = refusal({name: {SECRETS["connection string"]: "a"}})
    assert name in sentence
    assert SECRET not in sentence


NAMES_OF_SECRETS: Final = (
    *(setting.env for setting in catalogue() if setting.secret),
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
    "otel_exporter_otlp_headers",
    "AZURE_CLIENT_SECRET",
    "AZURE_PASSWORD",
    "AZURE_CLIENT_CERTIFICATE_PASSWORD",
    "EVENT_HUBS_CONNECTION_STRING",
    "EventHubConnectionString",
    "MY_TOKEN_2",
    "STORAGE_KEY",
    "DB_PWD",
    "SAS",
)


@pytest.mark.parametrize("name", NAMES_OF_SECRETS)
def test_a_secret_variable_must_come_from_a_secret(name: str) -> None:
    """Neither from a text nor from a ConfigMap, whatever its value."""
    for entry in ({"value": SECRET}, {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}):
        sentence = refusal({"extraEnv": [{"name": name, **entry}]})
        assert f"extraEnv: {name}" in sentence
        assert SECRET not in sentence


FORMS: Final = (
    '[{section}]\n{key} = "{secret}"\n',
    "[{section}]\n  '{key}'='{secret}'\n",
    '[{section}]\n"{key}" = """\n{secret}"""\n',
    '{section}.{key} = "{secret}"\n',
    '{section} . "{key}" = "{secret}"\n',
    '{section} = {{ a = 1, {key} = "{secret}" }}\n',
    '[{section}.{key}]\na = "{secret}"\n',
    '[{section}]\n{key}.a = "{secret}"\n',
    '[{section}]\n# {key} = "{secret}"\n',
    '[{section}]\r\n{upper} = "{secret}"\r\n',
    '[{section}]\n"{escaped}" = "{secret}"\n',
    '[{section}]\n"{long}" = "{secret}"\n',
)
SECRET_SETTINGS: Final = [setting for setting in catalogue() if setting.secret]


@pytest.mark.parametrize(
    ("setting", "text"),
    [(SECRET_SETTINGS[0], form) for form in FORMS] + [(setting, FORMS[0]) for setting in SECRET_SETTINGS[1:]],
)
def test_a_secret_setting_in_the_text_is_rejected(setting: Any, text: str) -> None:
    """In every spelling that TOML allows for its key; a harmless value changes nothing."""
    section, _, key = setting.name.partition(".")
    words = {
        "section": section,
        "key": key,
        "upper": key.upper(),
        "escaped": f"\\u{ord(key[0]):04x}{key[1:]}",
        "long": f"\\U{ord(key[0]):08X}{key[1:]}",
        "secret": SECRET,
    }
    sentence = refusal({"settingsText": text.format_map(words)})
    assert "settingsText: " in sentence
    assert SECRET not in sentence


def test_values_without_a_secret_are_accepted() -> None:
    """Files that hold one, addresses, paths, comments, and references to Secrets."""
    text = """\
# The connection string and the headers are in Secrets. Keys: see docs; a token is nowhere here.
[event_hubs]
connection_string_file = "/run/secrets/event-hubs/connection-string"
event_hub = "headers"
custom_endpoint = "sb://127.0.0.1:5671"
[otlp]
endpoint = "https://collector.example:4318/tenant"
client_key = "/run/secrets/tls.key"
certificate = 'C:\\Users\\ca.crt'
[web]
dashboard_url = "https://grafana.example/d/vm?var-instance={resource_group}/{vm_name}&orgId=1"
[source]
tags = ["headers", "connection_string"]
[recording]
path = "C:\\\\Users\\\\recording.jsonl"
"""
    taken = documents({"settingsText": text})
    assert not isinstance(taken, str), taken
    (made,) = [one["data"]["config.toml"] for one in taken if one["metadata"]["name"].endswith("-settings")]
    assert made == text.rstrip("\n") or made == text
    variables = [
        {"name": "OTEL_EXPORTER_OTLP_CLIENT_KEY", "value": "/run/ca/tls.key"},
        {"name": "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING_FILE", "value": "/run/secrets/x"},
        {"name": "AZURE_FEDERATED_TOKEN_FILE", "value": "/run/token"},
        {"name": "AZURE_TOKEN_CREDENTIALS", "value": "prod"},
        {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
        {"name": "NO_PROXY", "value": "169.254.169.254,10.0.0.0/8,::1"},
        {"name": "SCHEDULED_EVENTS_WEB_DASHBOARD_URL", "value": "https://grafana.example/d/vm?var-instance={vm_name}"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    variables += [{"name": name, "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}} for name in NAMES_OF_SECRETS]
    annotations = {
        "example.com/owner": "sre@example.com",
        "example.com/runbook": "https://wiki.example/agents?page=2#restart",
        "vault.hashicorp.com/agent-inject-template-a": '{{ with secret "a" }}\npassword={{ .Data.p }}\n{{ end }}',
    }
    assert render({"extraEnv": variables, "podAnnotations": annotations})


@pytest.mark.parametrize("name", VALUES)
def test_every_set_of_values_of_the_tests_is_accepted(name: str) -> None:
    """They contain no text that looks like a secret."""
    assert render(VALUES[name])
