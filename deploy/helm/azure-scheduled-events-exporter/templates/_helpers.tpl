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

{{/* Labels that select the pods. They differ between releases, so that two releases can serve different node pools. */}}
{{- define "agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "agent.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}


{{/* Labels of every object. Helm adds app.kubernetes.io/managed-by itself. */}}
{{- define "agent.labels" -}}
{{ include "agent.labelsWith" (dict "root" . "further" dict) }}
{{- end -}}

{{/* The same with additional labels, which take precedence over `labels`: kustomize, and so Flux, rejects duplicate keys. */}}
{{- define "agent.labelsWith" -}}
{{ include "agent.selectorLabels" .root }}
{{- with merge dict (.further | default dict) (.root.Values.labels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Additional labels of the pods. The webhook of workload identity selects pods by its own label. */}}
{{- define "agent.podLabels" -}}
{{- $identity := dict -}}
{{- if .Values.workloadIdentity.clientId }}{{ $_ := set $identity "azure.workload.identity/use" "true" }}{{ end -}}
{{- merge dict (.Values.podLabels | default dict) $identity | toYaml -}}
{{- end -}}

{{/* The reference of an image. Input: `image` (values) and `tag` (the default tag). */}}
{{- define "agent.image" -}}
{{- $tag := .image.tag | default .tag -}}
{{- if .image.digest -}}
{{ .image.repository }}{{ with .image.tag }}:{{ . }}{{ end }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}

{{/* YAML reads an unquoted off as false. */}}
{{- define "agent.mode" -}}
{{- .Values.approval.mode | default "off" -}}
{{- end -}}

{{- define "agent.listenAddress" -}}
{{- if contains ":" .Values.web.host -}}[{{ .Values.web.host }}]{{- else -}}{{ .Values.web.host }}{{- end -}}:{{ int .Values.web.port }}
{{- end -}}

{{/* The settings as the agent's TOML file. Text is a separate value, because Helm drops text that replaces a mapping. */}}
{{- define "agent.settings" -}}
{{- if .Values.settingsText -}}
{{- if .Values.settings -}}
{{- fail "settings and settingsText: both are set; use only one of them" -}}
{{- end -}}
{{- .Values.settingsText -}}
{{- else -}}
{{- $settings := deepCopy (.Values.settings | default dict) -}}
{{- if and .Values.handshake.enabled (not (hasKey ($settings.approval | default dict) "rules")) -}}
{{- $_ := set $settings "approval" (set ($settings.approval | default dict) "rules" (include "agent.handshakeRules" . | fromYamlArray)) -}}
{{- end -}}
{{- range $section, $keys := $settings }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "agent.toml" $value }}
{{- end }}
{{ end }}
{{- end -}}
{{- end -}}

{{/* The rules with the handshake: a drained node first, then the agent's default rules. Another VM of the same event isn't drained
by this node's handshake, so the event must name only one. */}}
{{- define "agent.handshakeRules" -}}
{{- $waiting := list -}}
{{- range .Values.handshake.eventTypes }}{{ if has . (list "Freeze" "Reboot" "Redeploy") }}{{ $waiting = append $waiting . }}{{ end }}{{ end -}}
{{- with $waiting -}}
- {name: drained, event_type: {{ toJson . }}, max_resources: 1, require_file: "/run/azure-scheduled-events-exporter/ready/{event_id}"}
{{ end -}}
- {name: user-initiated, event_source: [User], event_type: [Reboot, Redeploy]}
- {name: short-freeze, event_type: [Freeze], min_duration: 0, max_duration: 8}
{{- end -}}

{{- define "agent.eventFiles" -}}
{{- if or .Values.eventFiles .Values.handshake.enabled }}true{{ end -}}
{{- end -}}

{{- define "agent.readyFiles" -}}
{{- if or .Values.approval.readyFiles .Values.handshake.enabled }}true{{ end -}}
{{- end -}}

{{/* One value as TOML on one line. Helm reads all numbers as floats; whole numbers are written as integers. */}}
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
{{- fail "settings: a key has no value; remove the key or set a value" -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* Checks that the schema can't express: values that contradict each other. */}}
{{- define "agent.check" -}}
{{- include "agent.checkSecrets" . -}}
{{- if regexMatch `(^|/)\.\.(/|$)` .Values.outbox.hostPath -}}
{{- fail "outbox.hostPath: the path contains ..; write it without" -}}
{{- end -}}
{{- if regexMatch `^/((s?bin|boot|dev|etc|home|lib(32|64)?|media|mnt|opt|proc|root|run|srv|sys|tmp|usr|var)?$|(boot|dev|etc|proc|sys|usr)/|var/(cache|lib|lock|log|mail|run|spool|tmp)$|var/lib/(cni|containerd|docker|etcd|kubelet|private|systemd|waagent)(/|$))` (clean .Values.outbox.hostPath) -}}
{{- fail "outbox.hostPath: this is a system directory of the node, and an init container would change its owner to the agent; use a dedicated directory, for example /var/lib/azure-scheduled-events-exporter" -}}
{{- end -}}
{{- with .Values.web -}}
{{- if and (or .tls .password .clientCertificate) (not .configSecret.name) -}}
{{- fail "web.tls, web.password, and web.clientCertificate describe the web-config file, but there is none; set web.configSecret.name to its Secret" -}}
{{- end -}}
{{- if and .configSecret.name (not (or .tls .password)) -}}
{{- fail "web.configSecret.name: the probes need to know what the file requires; set web.tls=true, web.password=true, or both" -}}
{{- end -}}
{{- if and .clientCertificate (not .tls) -}}
{{- fail "web.clientCertificate: client certificates need TLS; set web.tls=true" -}}
{{- end -}}
{{- end -}}
{{- if .Values.podMonitor.enabled -}}
{{- if and .Values.web.tls (not .Values.podMonitor.tlsConfig) -}}
{{- fail "podMonitor.tlsConfig: required with web.tls; set what Prometheus trusts, for example {ca: {secret: {name: …, key: ca.crt}}, serverName: …}" -}}
{{- end -}}
{{- if and .Values.web.clientCertificate (not (and .Values.podMonitor.tlsConfig.cert .Values.podMonitor.tlsConfig.keySecret)) -}}
{{- fail "podMonitor.tlsConfig: cert and keySecret are required with web.clientCertificate; for example {cert: {secret: {name: …, key: tls.crt}}, keySecret: {name: …, key: tls.key}}" -}}
{{- end -}}
{{- if or (hasPrefix "127." .Values.web.host) (has .Values.web.host (list "::1" "localhost")) -}}
{{- fail (printf "podMonitor.enabled: Prometheus scrapes the node's address, on which an agent with web.host=%s does not listen; change one of them" .Values.web.host) -}}
{{- end -}}
{{- if and .Values.web.password (not .Values.web.credentialsSecret) -}}
{{- fail "web.credentialsSecret: required with web.password and podMonitor.enabled; set it to the Secret with username and password that Prometheus sends" -}}
{{- end -}}
{{- end -}}
{{- include "agent.checkOwn" . -}}
{{- with .Values.windows -}}
{{- if and .enabled (not (and .image.repository (or .image.tag .image.digest))) -}}
{{- fail "windows.image: no image for Windows is published; set a repository and a tag or digest (see docs/kubernetes.md)" -}}
{{- end -}}
{{- end -}}
{{- if .Values.handshake.enabled -}}
{{- with .Values.handshake.image -}}
{{- if not (and .repository (or .tag .digest)) -}}
{{- fail "handshake.image: set an image with sh and kubectl, by a repository and a tag or digest (see docs/kubernetes.md)" -}}
{{- end -}}
{{- end -}}
{{- if eq (include "agent.serviceAccountName" .) "default" -}}
{{- fail "handshake.enabled: it would let all pods of the namespace evict pods; set serviceAccount.create=true or serviceAccount.name" -}}
{{- end -}}
{{- if .Values.windows.enabled -}}
{{- fail "handshake.enabled: its rules have paths of Linux; install a second release for Windows nodes" -}}
{{- end -}}
{{- $file := "/run/azure-scheduled-events-exporter/ready/{event_id}" -}}
{{- range $rule := dig "approval" "rules" list (.Values.settings | default dict) -}}
{{- range $rule.event_type -}}
{{- if and (has . $.Values.handshake.eventTypes) (ne $file ($rule.require_file | default "")) -}}
{{- fail (printf "handshake.enabled: the rule %v approves a %v without the drain; set its require_file to %s, or remove the type from handshake.eventTypes" $rule.name . $file) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.settingsText -}}
{{- fail "handshake.enabled: the chart can't check whether the rules in settingsText wait for the drain; use settings" -}}
{{- end -}}
{{- if not .Values.handshake.eventTypes -}}
{{- fail "handshake.eventTypes: empty, so no node would be drained; name a type of event" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId (not .Values.settingsText) (not (dig "event_hubs" "fully_qualified_namespace" "" (.Values.settings | default dict))) (not .Values.eventHubs.connectionStringSecret.name) -}}
{{- fail "workloadIdentity.clientId: the Event Hubs namespace is missing; set settings.event_hubs.fully_qualified_namespace" -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId .Values.eventHubs.connectionStringSecret.name -}}
{{- fail "eventHubs.connectionStringSecret.name and workloadIdentity.clientId: both are set; use only one of them" -}}
{{- end -}}
{{- if and .Values.dashboards.grafanaOperator.enabled (not .Values.dashboards.enabled) -}}
{{- fail "dashboards.grafanaOperator.enabled: its objects read the dashboards' ConfigMaps; set dashboards.enabled=true" -}}
{{- end -}}
{{- end -}}

{{/* Values can't set again what the chart sets. Of two variables with the same name, the last one counts. Helm 3, Flux, and
Argo CD merge lists by name and remove both when one is removed: the hold file, and with it the hold, would be lost. */}}
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
{{- if include "agent.eventFiles" . }}{{ $_ := set $seen "SCHEDULED_EVENTS_EVENT_FILES_PATH" "eventFiles" }}{{ end -}}
{{- if .Values.windows.enabled }}{{ $_ := set $seen "SCHEDULED_EVENTS_OUTBOX_PATH" "the chart on Windows" }}{{ end -}}
{{- range .Values.extraEnv -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "extraEnv: %s is already set by %s; remove it here, because an upgrade that removes one of two removes both" .name (get $seen .name)) -}}
{{- end -}}
{{- $_ := set $seen .name "extraEnv" -}}
{{- include "agent.checkVariable" . -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name (list "hold" "outbox" "ready" "event-files" "settings" "web" "web-credentials" "event-hubs" "handshake" "handshake-state" "kubernetes-api") -}}
{{- fail (printf "extraVolumes: %s is a volume of the chart; use another name" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if has (clean .mountPath) (list "/etc/azure-scheduled-events-exporter" "/etc/azure-scheduled-events-exporter-settings" "/var/lib/azure-scheduled-events-exporter" "/run/azure-scheduled-events-exporter/ready" "/run/azure-scheduled-events-exporter/events" "/run/secrets/web" "/run/secrets/web-credentials" "/run/secrets/event-hubs") -}}
{{- fail (printf "extraVolumeMounts: the chart mounts a volume at %s; use another path" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- $labels := dict "labels" .Values.labels "podLabels" .Values.podLabels "podMonitor.labels" .Values.podMonitor.labels "prometheusRule.labels" .Values.prometheusRule.labels "dashboards.labels" .Values.dashboards.labels -}}
{{- range $where, $own := $labels -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if hasKey ($own | default dict) . -}}
{{- fail (printf "%s: the chart selects pods by %s; remove it" $where .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $where, $own := merge (dict "podAnnotations" .Values.podAnnotations "serviceAccount.annotations" .Values.serviceAccount.annotations "dashboards.annotations" .Values.dashboards.annotations "nodeSelector" .Values.nodeSelector "windows.nodeSelector" .Values.windows.nodeSelector) $labels -}}
{{- range $key, $_ := $own -}}
{{- if not (regexMatch `^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$` $key) -}}
{{- fail (printf "%s: a key is invalid in Kubernetes; use letters, digits, -, _, and ., optionally after a domain and /" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $where, $selector := dict "nodeSelector" .Values.nodeSelector "windows.nodeSelector" .Values.windows.nodeSelector -}}
{{- if hasKey ($selector | default dict) "kubernetes.io/os" -}}
{{- fail (printf "%s: the chart sets kubernetes.io/os; remove it (for Windows nodes, set windows.enabled)" $where) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId (hasKey (.Values.serviceAccount.annotations | default dict) "azure.workload.identity/client-id") -}}
{{- fail "serviceAccount.annotations: azure.workload.identity/client-id is already set by workloadIdentity.clientId; remove one of them" -}}
{{- end -}}
{{- if and .Values.workloadIdentity.clientId .Values.workloadIdentity.tenantId (hasKey (.Values.serviceAccount.annotations | default dict) "azure.workload.identity/tenant-id") -}}
{{- fail "serviceAccount.annotations: azure.workload.identity/tenant-id is already set by workloadIdentity.tenantId; remove one of them" -}}
{{- end -}}
{{- end -}}

{{/* A probe of `path`. With a password or client certificate, it runs the image's health check, which reads them from a
Secret: the kubelet's HTTP probe would need them in the manifest. */}}
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

{{/* The same on Windows, where the image has no health check program. */}}
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
