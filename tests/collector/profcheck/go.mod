module podperf.dev/tests/profcheck

go 1.25

tool github.com/open-telemetry/sig-profiling/profcheck/cmd/profcheck

require github.com/open-telemetry/sig-profiling/profcheck v0.0.0-20260416173450-2addcd15bcf9

require (
	go.opentelemetry.io/proto/otlp v1.10.0 // indirect
	go.opentelemetry.io/proto/otlp/profiles/v1development v0.3.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
