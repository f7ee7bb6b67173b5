//! The default of each key; config/podperf.yaml documents the same defaults for users.

use crate::model::facts::FactFamily;
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use super::{
    Cgroups, Config, Counters, Debuginfod, Identity, Kubelet, Kubernetes, Metrics, Otlp, Overhead, OwnSeries, Pmu,
    PodSource, PushedMetrics, Restart, Server, ServerLimits, Stacks, Testing, Tls, Unwinding, sensors,
};
use crate::{
    attribution::Level,
    export::otlp::{Compression, Preset, Protocol, SampleAttribute},
    kernel::SampleEvent,
    limits::max_memory::MaxMemory,
};

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9799)),
            server: Server::default(),
            node_name: String::new(),
            log_level: "info".into(),
            run_dir: "/run/podperf".into(),
            restart: Restart::default(),
            cgroups: Cgroups::default(),
            identity: Identity::Auto,
            kubernetes: Kubernetes::default(),
            metrics: Metrics::default(),
            counters: Counters::default(),
            pmu: Pmu::default(),
            overhead: Overhead::default(),
            sensors: sensors::defaults(),
            functions: Vec::new(),
            stacks: Stacks::default(),
            otlp: Otlp::default(),
            testing: Testing::default(),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { requests_per_second: 50, max_percent: 5.0 }
    }
}

impl Default for Restart {
    fn default() -> Self {
        Self { pin: true, directory: "/sys/fs/bpf/podperf".into(), daemon_set: String::new() }
    }
}

impl Default for Cgroups {
    fn default() -> Self {
        Self {
            root: PathBuf::new(),
            depth: 2,
            include: Vec::new(),
            exclude: Vec::new(),
            grace: Duration::from_secs(300),
            max: 4096,
        }
    }
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            source: PodSource::Watch,
            kubeconfig: PathBuf::new(),
            context: String::new(),
            kubelet: Kubelet::default(),
            pod_labels: Vec::new(),
            pod_annotations: Vec::new(),
            patience: Duration::from_secs(60),
        }
    }
}

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            url: String::new(),
            ca_file: PathBuf::new(),
            insecure_skip_verify: false,
            interval: Duration::from_secs(10),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            facts: FactFamily::DEFAULT.to_vec(),
            level: Level::Container,
            include_namespaces: Vec::new(),
            exclude_namespaces: Vec::new(),
            max_containers: 2048,
            created_series: false,
            classic_buckets: false,
            zero_first: true,
            own: OwnSeries::Brief,
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        let group = |events: [&str; 2]| events.map(str::to_owned).to_vec();
        Self { groups: vec![group(["cycles", "instructions"]), group(["cache-references", "cache-misses"])] }
    }
}

impl Default for Pmu {
    fn default() -> Self {
        Self { leave_free: 1, multiplex: false }
    }
}

impl Default for Overhead {
    fn default() -> Self {
        Self { max_percent: 5.0, max_memory: MaxMemory::Share, interrupt_isolated_cpus: false }
    }
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            enabled: true,
            long_wait: Duration::from_millis(500),
            waker_after: Duration::from_millis(10),
            waker_stacks: false,
            on_cpu_hertz: 49,
            on_cpu_event: SampleEvent::Auto,
            max_walks: 5000,
            max_samples: 16_384,
            filter: String::new(),
            unwind: Unwinding::DEFAULT,
            debuginfod: Debuginfod::default(),
        }
    }
}

impl Unwinding {
    /// The default: tables on x86-64. On other architectures they are not measured yet.
    pub const DEFAULT: Self = if cfg!(target_arch = "x86_64") { Self::Tables } else { Self::FramePointers };
}

impl Default for Debuginfod {
    fn default() -> Self {
        Self { urls: Vec::new(), cache_dir: "/var/cache/podperf".into(), max_cache: 1 << 30, pods: false }
    }
}

impl Default for Otlp {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            profiles: true,
            protocol: Protocol::Grpc,
            path: "/v1development/profiles".into(),
            preset: Preset::Generic,
            compression: Compression::Gzip,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            queue: 8,
            headers: BTreeMap::new(),
            sample_attributes: vec![SampleAttribute::State, SampleAttribute::Reason, SampleAttribute::Unwind],
            resource_attributes: BTreeMap::new(),
            tls: Tls::default(),
            metrics: PushedMetrics::default(),
        }
    }
}

impl Default for PushedMetrics {
    fn default() -> Self {
        Self { enabled: false, interval: Duration::from_secs(60), path: "/v1/metrics".into() }
    }
}
