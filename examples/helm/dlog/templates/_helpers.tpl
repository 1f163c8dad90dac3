{{- define "dlog.labels" -}}
app.kubernetes.io/name: dlog
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "dlog.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "dlog.zookeeper" -}}
{{- if .Values.zookeeper.enabled -}}
{{- $name := printf "%s-zookeeper" .Release.Name -}}
{{- range $i := until (int .Values.zookeeper.replicas) }}{{ if $i }};{{ end }}{{ $name }}-{{ $i }}.{{ $name }}:2181{{ end -}}
{{- else -}}
{{- required "zookeeper.servers: name the ZooKeeper to use, or set zookeeper.enabled" .Values.zookeeper.servers -}}
{{- end -}}
{{- end }}

{{- define "dlog.service" -}}
zk+hierarchical://{{ include "dlog.zookeeper" . }}{{ .Values.ledgersRoot }}
{{- end }}

{{- define "dlog.uri" -}}
distributedlog://{{ include "dlog.zookeeper" . }}/{{ .Values.namespace }}
{{- end }}

{{- define "dlog.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dlog.container" -}}
image: {{ include "dlog.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "dlog.scraped" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ . | quote }}
prometheus.io/path: /metrics
{{- end }}

{{- define "dlog.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .storage }}}}
{{- end }}
