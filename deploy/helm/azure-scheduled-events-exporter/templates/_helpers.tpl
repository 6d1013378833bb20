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
app.kubernetes.io/name: {{ include "agent.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}


{{/* Of every object. Helm itself adds app.kubernetes.io/managed-by to what it installs. */}}
{{- define "agent.labels" -}}
{{ include "agent.labelsWith" (dict "root" . "further" dict) }}
{{- end -}}

{{/* The same with further ones, which beat `labels`: a key that stands twice is refused by kustomize, and so by Flux. */}}
{{- define "agent.labelsWith" -}}
{{ include "agent.selectorLabels" .root }}
{{- with merge dict (.further | default dict) (.root.Values.labels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Further labels of the pods; Azure's webhook looks for the one. */}}
{{- define "agent.podLabels" -}}
{{- $identity := dict -}}
{{- if .Values.workloadIdentity.clientId }}{{ $_ := set $identity "azure.workload.identity/use" "true" }}{{ end -}}
{{- merge dict (.Values.podLabels | default dict) $identity | toYaml -}}
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

{{/* The settings as the agent's TOML file. The text is a value of its own: Helm drops a text below a mapping, rules and all. */}}
{{- define "agent.settings" -}}
{{- if .Values.settingsText -}}
{{- if .Values.settings -}}
{{- fail "settings and settingsText: give the agent's settings by section or as text, one of the two" -}}
{{- end -}}
{{- .Values.settingsText -}}
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
{{- include "agent.checkSecrets" . -}}
{{- if regexMatch `(^|/)\.\.(/|$)` .Values.outbox.hostPath -}}
{{- fail "outbox.hostPath: write the path without .." -}}
{{- end -}}
{{- if regexMatch `^/((s?bin|boot|dev|etc|home|lib(32|64)?|media|mnt|opt|proc|root|run|srv|sys|tmp|usr|var)?$|(boot|dev|etc|proc|sys|usr)/|var/(cache|lib|lock|log|mail|run|spool|tmp)$|var/lib/(cni|containerd|docker|etcd|kubelet|private|systemd|waagent)(/|$))` (clean .Values.outbox.hostPath) -}}
{{- fail "outbox.hostPath: this is a folder of the node's system, and an init container would give it to the agent: name a folder for the agent only, such as /var/lib/azure-scheduled-events-exporter" -}}
{{- end -}}
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
{{- if and .Values.web.clientCertificate (not (and .Values.podMonitor.tlsConfig.cert .Values.podMonitor.tlsConfig.keySecret)) -}}
{{- fail "podMonitor.tlsConfig needs cert and keySecret with web.clientCertificate: what Prometheus shows, such as {cert: {secret: {name: …, key: tls.crt}}, keySecret: {name: …, key: tls.key}}" -}}
{{- end -}}
{{- if or (hasPrefix "127." .Values.web.host) (has .Values.web.host (list "::1" "localhost")) -}}
{{- fail (printf "podMonitor.enabled scrapes the address of each node, where an agent with web.host=%s does not answer" .Values.web.host) -}}
{{- end -}}
{{- if and .Values.web.password (not .Values.web.credentialsSecret) -}}
{{- fail "web.credentialsSecret is needed with web.password and podMonitor.enabled: a Secret with username and password, which Prometheus sends" -}}
{{- end -}}
{{- end -}}
{{- include "agent.checkOwn" . -}}
{{- with .Values.windows -}}
{{- if and .enabled (not (and .image.repository (or .image.tag .image.digest))) -}}
{{- fail "windows.image needs a repository and a tag or digest: no image for Windows is published, see docs/kubernetes.md" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId (not .Values.settingsText) (not (dig "event_hubs" "fully_qualified_namespace" "" (.Values.settings | default dict))) (not .Values.eventHubs.connectionStringSecret.name) -}}
{{- fail "workloadIdentity.clientId signs in to a namespace of Event Hubs: name it in settings.event_hubs.fully_qualified_namespace" -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId .Values.eventHubs.connectionStringSecret.name -}}
{{- fail "Event Hubs is reached by a connection string or by an identity: empty eventHubs.connectionStringSecret.name or workloadIdentity.clientId" -}}
{{- end -}}
{{- if and .Values.dashboards.grafanaOperator.enabled (not .Values.dashboards.enabled) -}}
{{- fail "dashboards.grafanaOperator.enabled needs dashboards.enabled=true: its objects read the ConfigMaps" -}}
{{- end -}}
{{- end -}}

{{/* What is the chart's own can't be given a second time. Of two variables of a name the last one counts; Helm 3, Flux and
Argo CD, which merge lists by name, take both away when one of them goes: so a hold file was lost, and with it the hold. */}}
{{- define "agent.checkOwn" -}}
{{- $web := .Values.web -}}
{{- $seen := dict -}}
{{- range list "SOURCE_NODE_NAME" "APPROVAL_MODE" "APPROVAL_HOLD_FILE" "LOG_FORMAT" "WEB_LISTEN_ADDRESS" -}}
{{- $_ := set $seen (print "SCHEDULED_EVENTS_" .) "the chart" -}}
{{- end -}}
{{- if include "agent.settings" . | trim }}{{ $_ := set $seen "SCHEDULED_EVENTS_CONFIG_FILE" "settings" }}{{ end -}}
{{- if $web.configSecret.name }}{{ $_ := set $seen "SCHEDULED_EVENTS_WEB_CONFIG_FILE" "web.configSecret" }}{{ end -}}
{{- if .Values.eventHubs.connectionStringSecret.name }}{{ $_ := set $seen "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING_FILE" "eventHubs.connectionStringSecret" }}{{ end -}}
{{- if .Values.otlp.headersSecret.name }}{{ $_ := set $seen "SCHEDULED_EVENTS_OTLP_HEADERS" "otlp.headersSecret" }}{{ end -}}
{{- if .Values.eventFiles }}{{ $_ := set $seen "SCHEDULED_EVENTS_EVENT_FILES_PATH" "eventFiles" }}{{ end -}}
{{- if .Values.windows.enabled }}{{ $_ := set $seen "SCHEDULED_EVENTS_OUTBOX_PATH" "the chart on Windows" }}{{ end -}}
{{- range .Values.extraEnv -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "extraEnv: %s is set by %s already: of two, an upgrade that takes one away takes both" .name (get $seen .name)) -}}
{{- end -}}
{{- $_ := set $seen .name "extraEnv" -}}
{{- include "agent.checkVariable" . -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name (list "hold" "outbox" "ready" "event-files" "settings" "web" "web-credentials" "event-hubs") -}}
{{- fail (printf "extraVolumes: %s is a volume of the chart itself: give yours another name" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if has (clean .mountPath) (list "/etc/azure-scheduled-events-exporter" "/etc/azure-scheduled-events-exporter-settings" "/var/lib/azure-scheduled-events-exporter" "/run/azure-scheduled-events-exporter/ready" "/run/azure-scheduled-events-exporter/events" "/run/secrets/web" "/run/secrets/web-credentials" "/run/secrets/event-hubs") -}}
{{- fail (printf "extraVolumeMounts: %s is where the chart itself mounts: it would be hidden" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- $labels := dict "labels" .Values.labels "podLabels" .Values.podLabels "podMonitor.labels" .Values.podMonitor.labels "prometheusRule.labels" .Values.prometheusRule.labels "dashboards.labels" .Values.dashboards.labels -}}
{{- range $where, $own := $labels -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if hasKey ($own | default dict) . -}}
{{- fail (printf "%s: %s is the chart's own: pods are selected by it" $where .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $where, $own := merge (dict "podAnnotations" .Values.podAnnotations "serviceAccount.annotations" .Values.serviceAccount.annotations "dashboards.annotations" .Values.dashboards.annotations "nodeSelector" .Values.nodeSelector "windows.nodeSelector" .Values.windows.nodeSelector) $labels -}}
{{- range $key, $_ := $own -}}
{{- if not (regexMatch `^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$` $key) -}}
{{- fail (printf "%s: has a key that Kubernetes refuses: letters, digits, - _ and . are allowed, and a domain with / in front" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $where, $selector := dict "nodeSelector" .Values.nodeSelector "windows.nodeSelector" .Values.windows.nodeSelector -}}
{{- if hasKey ($selector | default dict) "kubernetes.io/os" -}}
{{- fail (printf "%s: kubernetes.io/os is the chart's own: Windows nodes are reached by windows.enabled" $where) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId (hasKey (.Values.serviceAccount.annotations | default dict) "azure.workload.identity/client-id") -}}
{{- fail "serviceAccount.annotations: azure.workload.identity/client-id is set by workloadIdentity.clientId already" -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId .Values.workloadIdentity.tenantId (hasKey (.Values.serviceAccount.annotations | default dict) "azure.workload.identity/tenant-id") -}}
{{- fail "serviceAccount.annotations: azure.workload.identity/tenant-id is set by workloadIdentity.tenantId already" -}}
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
  path: {{ .path | quote }}
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
