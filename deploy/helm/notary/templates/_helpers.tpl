{{- define "notary.fullname" -}}
{{- if contains "notary" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-notary" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "notary.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "notary.cluster" -}}
{{ .Values.cluster | default .Release.Name }}
{{- end }}

{{- /* The service without an address of its own: it gives each replica its name. */ -}}
{{- define "notary.headless" -}}
{{ include "notary.fullname" . }}-replicas
{{- end }}

{{- define "notary.selector" -}}
app.kubernetes.io/name: notary
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "notary.labels" -}}
{{ include "notary.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "notary.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Everything that notary.toml names, in one folder. Owner root, group ours, so that only root may change a file. */ -}}
{{- define "notary.files" -}}
projected:
  defaultMode: 0440
  sources:
    - configMap: {name: {{ include "notary.fullname" . }}}
    {{- range .Values.configMaps }}
    - configMap: {name: {{ . }}}
    {{- end }}
    {{- range .Values.secrets }}
    - secret: {name: {{ . }}}
    {{- end }}
{{- end }}
