{{/* Keep secrets out of ConfigMaps and pod specs, which many users can read: search all values of the chart, and reject a
value that contains a secret with a message that doesn't show it. */}}
{{- define "agent.checkSecrets" -}}
{{- $text := .Values.settingsText -}}
{{- if regexMatch `(?i)\\(u[0-9a-f]{4}|x[0-9a-f]{2})` (regexReplaceAll `\\\\` $text "") -}}
{{- fail "settingsText: an escape such as \\u0061 can hide a secret; write the character itself" -}}
{{- end -}}
{{- $found := include "agent.secrets" (dict "at" "" "value" (omit .Values "global")) -}}
{{- $key := `connection_string|headers` -}}
{{- $flat := regexReplaceAll `[ \t\r"'\\]+` (lower $text) "" -}}
{{- with regexFind (printf `(^|[\n.{,#[])(%s)(=|\.[^=\n]*=)|(^|\n)\[+[^\]\n]*(%s)\]` $key $key) $flat -}}
{{- $found = printf "%s\nsettingsText: contains the setting %s" $found (regexFind $key .) -}}
{{- end -}}
{{- with trim $found -}}
{{- fail (printf "%s\nA ConfigMap or pod would show it; create a Secret and name it in eventHubs.connectionStringSecret, otlp.headersSecret, or valueFrom.secretKeyRef in extraEnv" .) -}}
{{- end -}}
{{- end -}}

{{/* A variable of extraEnv with the name of a secret must come from a Secret, regardless of its value. */}}
{{- define "agent.checkVariable" -}}
{{- $name := upper .name -}}
{{- $secret := regexMatch `CONNECTION_?STRING|PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|AUTHORIZATION|HEADERS|SIGNATURE|(API|ACCESS|ACCOUNT)_?KEY|(^|_)(PWD|PASS|KEY|SAS|AUTH)(_|$)` $name -}}
{{- $other := or (regexMatch `_(FILE|PATH|DIR|CLIENT_KEY)$` $name) (eq $name "AZURE_TOKEN_CREDENTIALS") -}}
{{- if and $secret (not $other) (or .value (not (dig "secretKeyRef" "" (.valueFrom | default dict)))) -}}
{{- fail (printf "extraEnv: %s is the name of a secret; set it by valueFrom.secretKeyRef, not as text or from a ConfigMap" .name) -}}
{{- end -}}
{{- end -}}

{{/* A line for each text in `value`, keys included, that holds a secret. `at` is where the value is. */}}
{{- define "agent.secrets" -}}
{{- $at := .at -}}
{{- if kindIs "string" .value -}}
{{- with include "agent.secretIn" . }}
{{ $at }}: contains {{ . }}
{{- end -}}
{{- else if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- with include "agent.secretIn" (dict "at" $at "value" $key) }}
{{ $at }}: has a key that contains {{ . }}
{{- else -}}
{{- include "agent.secrets" (dict "at" (trimPrefix "." (printf "%s.%s" $at $key)) "value" $value) -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value -}}
{{- $of := printf "%s[%d]" $at $index -}}
{{- if and (eq $at "extraEnv") (kindIs "map" $value) -}}
{{- $of = printf "extraEnv: %v" $value.name -}}
{{- end -}}
{{- include "agent.secrets" (dict "at" $of "value" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The kind of secret in the text `value`, or nothing. More patterns apply to values that the agent reads. Line breaks,
quotes, spaces, and case are ignored, because YAML and TOML can write a text in many ways. */}}
{{- define "agent.secretIn" -}}
{{- $text := lower .value -}}
{{- $flat := regexReplaceAll `([\s\\"']|%20)+` $text "" -}}
{{- $queries := regexReplaceAll `dashboard_url[^\n]*` (ternary "" $text (contains "dashboard_url" (lower .at))) "" -}}
{{- if regexMatch `sharedaccess(key|signature)|accountkey(=|%3d)|(^|[^_])endpoint(=|%3d)sb:` $flat -}}
a connection string or a SAS token
{{- else if regexMatch `begin[a-z]*privatekey` $flat -}}
a private key
{{- else if regexMatch `\beyj[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}` $text -}}
a token
{{- else if regexMatch `://[^\s"']*(@|%40)` $text -}}
a URL with a user or a password
{{- else if regexMatch `[?&#;]([a-z0-9_.-]*[_.-])?(sig|token|key|code|auth|secret|signature|credential|jwt|sas|pass|password|pwd|apikey)(=|%3d)` $text -}}
a URL with a secret in its query
{{- else if not (regexMatch `^(settings|settingsText|extraEnv)\b` .at) -}}
{{- else if regexMatch `://[^\s"']*\?` $queries -}}
a URL with a query
{{- else if regexMatch `[^\s"',=]:[^\s"'/\\][^\s"']*@` $text -}}
a user and a password
{{- else if regexMatch `(password|passwd|passphrase|pwd|client[-_]?secret|(access|refresh|id)[-_]?token|api[-_]?key|authorization|(primary|secondary|master|subscription|account|private|secret)[-_]?key)["']?\s*[:=]` $text -}}
a password, a key or a token
{{- end -}}
{{- end -}}
