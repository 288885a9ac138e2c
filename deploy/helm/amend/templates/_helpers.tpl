{{- define "amend.name" -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "amend.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "amend.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "amend.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "amend.name" . }}{{ else }}default{{ end }}
{{- end }}

{{/* Called with (list ROOT SUFFIX): SUFFIX is empty, "ray" or "cuda". */}}
{{- define "amend.image" -}}
{{- $root := index . 0 }}{{ $suffix := index . 1 -}}
{{ $root.Values.image.repository }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ if $suffix }}-{{ $suffix }}{{ end }}
{{- end }}

{{- define "amend.mlflowUrl" -}}
{{- if .Values.mlflow.enabled }}http://{{ include "amend.name" . }}-mlflow:5000{{ else }}{{ .Values.mlflow.url }}{{ end }}
{{- end }}

{{/* The certificates by which PostgreSQL is verified. */}}
{{- define "amend.databaseAuthority" -}}
{{- if hasPrefix "verify" .Values.database.sslmode }}
- {name: PGSSLROOTCERT, value: {{ ternary "/run/amend/database_ca" "/etc/ssl/certs/ca-certificates.crt" .Values.database.caInSecret }}}
{{- end }}
{{- end }}

{{- define "amend.environment" -}}
- {name: AMEND_HOME, value: /tmp/amend}
- {name: AMEND_SECRETS, value: /run/amend}
- name: AMEND_DATABASE_URL
  value: postgresql://{{ .Values.database.user }}@{{ required "database.host: host name of PostgreSQL" .Values.database.host }}:{{ .Values.database.port }}/{{ .Values.database.name }}?sslmode={{ .Values.database.sslmode }}
{{- include "amend.databaseAuthority" . }}
{{- with .Values.redis.url }}
- {name: AMEND_BROKER_URL, value: {{ . | quote }}}
{{- end }}
- name: AMEND_ARTIFACTS_URL
  value: {{ .Values.artifacts.url | default "/var/lib/amend/artifacts" | quote }}
{{- if .Values.artifacts.credentialsInSecret }}
- {name: AWS_SHARED_CREDENTIALS_FILE, value: /run/amend/aws_credentials}
{{- end }}
{{- with .Values.artifacts.endpointUrl }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
{{- with include "amend.mlflowUrl" . }}
- {name: AMEND_MLFLOW_URL, value: {{ . | quote }}}
{{- end }}
{{- with .Values.mlflow.pagesUrl }}
- {name: AMEND_MLFLOW_PAGES_URL, value: {{ . | quote }}}
{{- end }}
- {name: AMEND_SHUTDOWN_TIMEOUT, value: "8"}
{{- include "amend.settings" . }}
{{- end }}

{{- define "amend.settings" -}}
{{- range $name, $value := .Values.settings }}
{{- /* Helm reads numbers of a file as floats, and would write large ones as 1e+06 */}}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value = int64 $value }}{{ end }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Pod-level fields that all pods share. */}}
{{- define "amend.pod" -}}
serviceAccountName: {{ include "amend.serviceAccount" . }}
{{ include "amend.podSecurity" . }}
terminationGracePeriodSeconds: 20
{{- end }}

{{- define "amend.podSecurity" -}}
automountServiceAccountToken: false
# variables of services, such as AMEND_PORT, would be mistaken for settings
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "amend.placement" -}}
{{- $root := index . 0 }}{{ $own := index . 1 }}
{{- with $own.nodeSelector | default $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations | default $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "amend.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "amend.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /run/amend, readOnly: true}
{{- if not .Values.artifacts.url }}
- {name: artifacts, mountPath: /var/lib/amend/artifacts}
{{- end }}
{{- end }}

{{/* Called with (list ROOT KEYS): volumes of a pod, with these keys of the secret. */}}
{{- define "amend.volumes" -}}
{{- $root := index . 0 }}{{ $keys := index . 1 -}}
- {name: tmp, emptyDir: {}}
- name: secrets
  secret:
    secretName: {{ $root.Values.existingSecret }}
    defaultMode: 0440
    items:
    {{- range $keys }}
      - {key: {{ . }}, path: {{ . }}}
    {{- end }}
{{- if not $root.Values.artifacts.url }}
- name: artifacts
  persistentVolumeClaim:
    claimName: {{ required "artifacts.url (s3://...) or artifacts.existingClaim is required" $root.Values.artifacts.existingClaim }}
{{- end }}
{{- end }}

{{/* Called with (list ROOT MORE): space-separated keys of the secret that a process needs. */}}
{{- define "amend.keys" -}}
{{- $root := index . 0 -}}
amend_database_password amend_secret_key
{{- if not $root.Values.redis.url }} amend_broker_url{{ end }}
{{- if $root.Values.database.caInSecret }} database_ca{{ end }}
{{- if $root.Values.artifacts.credentialsInSecret }} aws_credentials{{ end }}
{{- with index . 1 }} {{ . }}{{ end }}
{{- end }}

{{- define "amend.workKeys" -}}
amend_signing_key{{ if include "amend.mlflowUrl" . }} amend_mlflow_password{{ end }}
{{- range .Values.moreSecretKeys }} {{ . }}{{ end }}
{{- end }}
