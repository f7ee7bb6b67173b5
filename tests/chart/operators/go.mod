module podperf.dev/tests/chart/operators

go 1.26

require (
	github.com/openshift/api v0.0.0-20240124164020-e2ce40831f2e
	github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring v0.92.1
	k8s.io/autoscaler/vertical-pod-autoscaler v1.7.0
)
