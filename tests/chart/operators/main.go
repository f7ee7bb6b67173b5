// Reads objects of operators as the operators do: each into its own Go type, and no field that the type does not have.
// Takes them as YAML on stdin; prints how many there were, or the first that is none, and fails.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	security "github.com/openshift/api/security/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	monitoringalpha "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	autoscaling "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/apis/autoscaling.k8s.io/v1"
	"sigs.k8s.io/yaml"
)

var types = map[string]func() any{
	"monitoring.coreos.com/v1/PodMonitor":                 func() any { return &monitoring.PodMonitor{} },
	"monitoring.coreos.com/v1/ServiceMonitor":             func() any { return &monitoring.ServiceMonitor{} },
	"monitoring.coreos.com/v1/PrometheusRule":             func() any { return &monitoring.PrometheusRule{} },
	"monitoring.coreos.com/v1alpha1/ScrapeConfig":         func() any { return &monitoringalpha.ScrapeConfig{} },
	"autoscaling.k8s.io/v1/VerticalPodAutoscaler":         func() any { return &autoscaling.VerticalPodAutoscaler{} },
	"security.openshift.io/v1/SecurityContextConstraints": func() any { return &security.SecurityContextConstraints{} },
}

func main() {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for count := 0; ; count++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			fmt.Println(count)
			return
		}
		var kind metav1.TypeMeta
		if err == nil {
			err = yaml.Unmarshal(document, &kind)
		}
		name := kind.APIVersion + "/" + kind.Kind
		if err == nil && types[name] == nil {
			err = errors.New("no such type here")
		}
		if err == nil {
			err = yaml.UnmarshalStrict(document, types[name]())
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
	}
}
