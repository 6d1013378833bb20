{{- define "agent.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "agent.fullname" -}}
{{- $name := include "agent.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "agent.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "agent.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* What pods are known by: two releases, each for its own node pools, are two things. */}}
{{- define "agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}


{{/* Of every object. Helm itself adds app.kubernetes.io/managed-by to what it installs. */}}
{{- define "agent.labels" -}}
{{ include "agent.selectorLabels" . }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image: a dictionary of `image` (values) and `tag`, what is taken where that names none. */}}
{{- define "agent.image" -}}
{{- $tag := .image.tag | default .tag -}}
{{- if .image.digest -}}
{{ .image.repository }}{{ with .image.tag }}:{{ . }}{{ end }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}

{{/* A bare off is YAML's false. */}}
{{- define "agent.mode" -}}
{{- .Values.approval.mode | default "off" -}}
{{- end -}}

{{- define "agent.listenAddress" -}}
{{- if contains ":" .Values.web.host -}}[{{ .Values.web.host }}]{{- else -}}{{ .Values.web.host }}{{- end -}}:{{ int .Values.web.port }}
{{- end -}}

{{/* The settings as the agent's TOML file. */}}
{{- define "agent.settings" -}}
{{- if kindIs "string" .Values.settings -}}
{{- .Values.settings -}}
{{- else -}}
{{- range $section, $keys := .Values.settings }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "agent.toml" $value }}
{{- end }}
{{ end }}
{{- end -}}
{{- end -}}

{{/* One value as TOML on one line. Numbers of values.yaml are all floats; a whole one is meant as an integer. */}}
{{- define "agent.toml" -}}
{{- if kindIs "string" . -}}
{{- toJson . -}}
{{- else if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else if kindIs "slice" . -}}
[{{ range $index, $entry := . }}{{ if $index }}, {{ end }}{{ include "agent.toml" $entry }}{{ end }}]
{{- else if kindIs "map" . -}}
{ {{ $first := true }}{{ range $key, $entry := . }}{{ if not $first }}, {{ end }}{{ $first = false }}{{ toJson $key }} = {{ include "agent.toml" $entry }}{{ end }} }
{{- else if kindIs "invalid" . -}}
{{- fail "settings: a key has no value: remove it, or give it one" -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* What no schema can say: values that contradict each other. */}}
{{- define "agent.check" -}}
{{- with .Values.web -}}
{{- if and (or .tls .password .clientCertificate) (not .configSecret.name) -}}
{{- fail "web.tls, web.password and web.clientCertificate say what the web-config file asks for: name the Secret that holds it in web.configSecret.name" -}}
{{- end -}}
{{- if and .configSecret.name (not (or .tls .password)) -}}
{{- fail "web.configSecret.name is set: say with web.tls=true, web.password=true or both what that file asks for, so that the probes can ask in that way" -}}
{{- end -}}
{{- if and .clientCertificate (not .tls) -}}
{{- fail "web.clientCertificate needs web.tls=true" -}}
{{- end -}}
{{- end -}}
{{- if .Values.podMonitor.enabled -}}
{{- if and .Values.web.tls (not .Values.podMonitor.tlsConfig) -}}
{{- fail "podMonitor.tlsConfig is needed with web.tls: whom Prometheus trusts, such as {ca: {secret: {name: …, key: ca.crt}}, serverName: …}" -}}
{{- end -}}
{{- if and .Values.web.password (not .Values.web.credentialsSecret) -}}
{{- fail "web.credentialsSecret is needed with web.password and podMonitor.enabled: a Secret with username and password, which Prometheus sends" -}}
{{- end -}}
{{- end -}}
{{- with .Values.windows -}}
{{- if and .enabled (not (and .image.repository (or .image.tag .image.digest))) -}}
{{- fail "windows.image needs a repository and a tag or digest: no image for Windows is published, see docs/kubernetes.md" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId (kindIs "map" .Values.settings) (not (dig "event_hubs" "fully_qualified_namespace" "" .Values.settings)) (not .Values.eventHubs.connectionStringSecret.name) -}}
{{- fail "workloadIdentity.clientId signs in to a namespace of Event Hubs: name it in settings.event_hubs.fully_qualified_namespace" -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId .Values.eventHubs.connectionStringSecret.name -}}
{{- fail "Event Hubs is reached by a connection string or by an identity: empty eventHubs.connectionStringSecret.name or workloadIdentity.clientId" -}}
{{- end -}}
{{- if and .Values.dashboards.grafanaOperator.enabled (not .Values.dashboards.enabled) -}}
{{- fail "dashboards.grafanaOperator.enabled needs dashboards.enabled=true: its objects read the ConfigMaps" -}}
{{- end -}}
{{- end -}}

{{/* How a probe asks `path`. With a password or a client certificate the image's own health check shows them: they are
in a Secret, and a probe of the kubelet would need them in the manifest. */}}
{{- define "agent.probe" -}}
{{- $web := .root.Values.web -}}
{{- if or $web.password $web.clientCertificate -}}
exec:
  command:
    - python3
    - /opt/agent/healthcheck.py
    {{- if eq .path "/-/ready" }}
    - --ready
    {{- end }}
    {{- if $web.credentialsSecret }}
    - --credentials=/run/secrets/web-credentials
    {{- end }}
{{- else -}}
httpGet:
  path: {{ .path }}
  port: metrics
  {{- if not (has $web.host (list "0.0.0.0" "::")) }}
  host: {{ $web.host | quote }}
  {{- end }}
  {{- if $web.tls }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{- end -}}

{{/* The same on Windows, whose image has no health check of its own. */}}
{{- define "agent.windowsProbe" -}}
{{- $web := .root.Values.web -}}
{{- if or $web.password $web.clientCertificate -}}
tcpSocket:
  port: metrics
  {{- if not (has $web.host (list "0.0.0.0" "::")) }}
  host: {{ $web.host | quote }}
  {{- end }}
{{- else -}}
{{ include "agent.probe" . }}
{{- end }}
{{- end -}}
