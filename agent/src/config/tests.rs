use caps::Capability;

use super::*;
use crate::{kernel::host::Host, model::status::State};

const EXAMPLE: &str = include_str!("../../../config/podperf.yaml");

fn refusal(yaml: &str) -> String {
    match Config::parse(yaml) {
        Err(error) => error.to_string(),
        Ok(config) => Settings::try_from(config).unwrap_err().to_string(),
    }
}

#[test]
fn the_example_equals_the_defaults() {
    let mut defaults = Config::default();
    assert_eq!(defaults.stacks.unwind == Unwinding::Tables, cfg!(target_arch = "x86_64"));
    // The example has the default of x86-64.
    defaults.stacks.unwind = Unwinding::Tables;
    assert_eq!(Config::parse(EXAMPLE).unwrap(), defaults);
}

#[test]
fn the_example_holds_every_key_and_explains_it() {
    fn keys(value: &serde_yaml::Value, prefix: &str, into: &mut Vec<String>) {
        for (key, value) in value.as_mapping().into_iter().flatten() {
            let path = format!("{prefix}{}", key.as_str().unwrap());
            keys(value, &format!("{path}."), into);
            into.push(path);
        }
    }
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    keys(&serde_yaml::to_value(Config::default()).unwrap(), "", &mut expected);
    keys(&serde_yaml::from_str(EXAMPLE).unwrap(), "", &mut found);
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let lines: Vec<_> = EXAMPLE.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let is_key = !line.trim_start().starts_with(['#', '-']) && line.contains(':');
        assert!(!is_key || lines[index - 1].trim_start().starts_with('#'), "no comment above `{line}`");
    }
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(Config::parse("").unwrap(), Config::default());
    assert_eq!(Config::parse("# nothing\n").unwrap(), Config::default());
}

#[test]
fn an_unknown_key_is_refused_with_its_path_and_the_nearest() {
    let message = refusal("cgroups:\n  dept: 3\n");
    let start = "cgroups: unknown key `dept` at line 2 column 3 (did you mean `depth`?)";
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn a_wrong_type_is_refused_with_its_path() {
    let message = refusal("cgroups:\n  depth: many\n");
    assert!(message.starts_with("cgroups.depth: invalid type: string \"many\""), "{message}");
    let message = refusal("otlp:\n  interval: 10 parsecs\n");
    assert!(message.starts_with("otlp.interval:"), "{message}");
}

#[test]
fn values_that_cannot_be_are_refused_with_their_key() {
    for (yaml, start) in [
        ("otlp: {interval: 10ms}", "bad value for `otlp.interval`: needs at least 1s"),
        ("cgroups: {max: 0}", "bad value for `cgroups.max`"),
        ("overhead: {maxMemory: 200m}", "overhead.maxMemory: `200m` needs bytes, as in 200Mi, 0 for none, or nothing"),
        ("stacks: {debuginfod: {urls: [x.example]}}", "bad value for `stacks.debuginfod.urls`: an address needs"),
        ("stacks: {debuginfod: {urls: ['https://a:b@x']}}", "bad value for `stacks.debuginfod.urls`: an address has a"),
        ("stacks: {debuginfod: {maxCache: 1Mi}}", "bad value for `stacks.debuginfod.maxCache`: needs at least 64Mi"),
        ("stacks: {debuginfod: {maxCache: 0}}", "stacks.debuginfod: `maxCache` needs bytes, as in 1Gi"),
        ("stacks: {debuginfod: {cacheDir: cache}}", "bad value for `stacks.debuginfod.cacheDir`: `cache` is no"),
        ("overhead: {maxMemory: [1]}", "overhead.maxMemory: invalid type: sequence, expected bytes, as in 200Mi"),
        ("cgroups: {exclude: ['(']}", "bad value for `cgroups.exclude`: failed to parse pattern `(`"),
        ("logLevel: '=x='", "bad value for `logLevel`"),
        ("logLevel: loud", "bad value for `logLevel`: unknown level `loud`"),
        ("otlp: {metrics: {enabled: true}}", "bad value for `otlp.metrics.enabled`: needs `otlp.endpoint`"),
        ("otlp: {endpoint: 'http://x:1', tls: {serverName: y}}", "bad value for `otlp`: `tls` is set, but"),
        ("otlp: {endpoint: 'https://x:1', tls: {certFile: y}}", "bad value for `otlp`: `otlp.tls.certFile` is set"),
        (
            "otlp: {endpoint: 'http://x:1', preset: pyroscope, \
             resourceAttributes: {a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x}}",
            "bad value for `otlp.resourceAttributes`: 8 are too many for this preset (at most 6)",
        ),
        ("otlp: {endpoint: 'ftp://x'}", "bad value for `otlp`: endpoint `ftp://x`"),
        ("server: {tls: {certFile: /x}}", "bad value for `server.tls`: needs both `certFile` and `keyFile`"),
        ("server: {authorization: {enabled: true}}", "bad value for `server.authorization.enabled`: tokens would be"),
        ("server: {authorization: {audiences: [x]}}", "bad value for `server.authorization.audiences`: no tokens"),
        ("server: {limits: {maxPercent: .nan}}", "bad value for `server.limits.maxPercent`: needs 0 to 100"),
    ] {
        assert!(refusal(yaml).starts_with(start), "{yaml}: {}", refusal(yaml));
    }
}

#[test]
fn headers_of_a_wrong_type_are_refused_without_their_text() {
    for headers in ["authorization=secret", "{authorization: [secret]}", "{authorization: {secret: x}}", "[secret]"] {
        let message = refusal(&format!("otlp: {{headers: {headers}}}"));
        assert!(message.starts_with("otlp: `headers` is not a mapping of names to texts"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn keys_that_need_a_restart_are_named() {
    let old = Config::default();
    let mut new = Config { log_level: "debug".into(), ..Config::default() };
    new.cgroups.depth = 1;
    assert!(old.needs_restart(&new).is_empty());
    new.cgroups.max = 17;
    new.listen = SocketAddr::from(([127, 0, 0, 1], 1));
    assert_eq!(old.needs_restart(&new), ["listen", "cgroups.max"]);
}

#[test]
fn facts_are_measured_if_something_needs_them() {
    let wants = |yaml: &str| parts::wants_facts(&Config::parse(yaml).unwrap());
    let nothing = "{metrics: {facts: []}, stacks: {enabled: false}}";
    assert!(wants("") && wants("metrics: {facts: []}") && wants("stacks: {enabled: false}") && !wants(nothing));
    assert!(wants("{metrics: {facts: []}, stacks: {enabled: false}, sensors: {locks: {enabled: true}}}"));
}

#[test]
fn profiles_are_sent_to_a_receiver_of_profiles_only() {
    let sends = |yaml: &str| parts::sends_profiles(&Config::parse(yaml).unwrap());
    assert!(sends("otlp: {endpoint: 'http://x:1'}") && !sends(""));
    assert!(!sends("otlp: {endpoint: 'http://x:1', profiles: false}"));
    assert!(!sends("{otlp: {endpoint: 'http://x:1'}, stacks: {enabled: false}}"));
}

#[test]
fn user_stacks_are_copied_only_where_tables_lack_nothing() {
    let host = Host { capabilities: vec![Capability::CAP_SYS_PTRACE], ..Host::example() };
    let mut config = Config::default();
    config.stacks.unwind = Unwinding::Tables;
    let copies = |config: &Config, host: &Host| parts::sensor_settings(config, host).copies;
    let by_tables = (State::Healthy, "by the unwind tables of the programs' files".to_owned());
    assert_eq!((copies(&config, &host), states::unwinding(&config, &host, None)), (true, Some(by_tables)));
    let instead = "by frame pointers instead of tables: ";
    for (lacking, needs) in [
        (Host { sees_all_processes: false, ..host.clone() }, "(set `hostPID: true`, "),
        (Host::example(), "(give it CAP_SYS_PTRACE, or set `stacks.unwind: frame-pointers`)"),
    ] {
        for (receiver, expected) in [("", State::Healthy), ("http://x:1", State::Degraded)] {
            config.otlp.endpoint = receiver.into();
            let (state, detail) = states::unwinding(&config, &lacking, None).unwrap();
            assert_eq!((copies(&config, &lacking), state), (false, expected), "{detail}");
            assert!(detail.starts_with(instead) && detail.contains(needs), "{detail}");
        }
    }
    let (state, detail) = states::unwinding(&config, &host, Some("failed to start BPF program `sample`")).unwrap();
    assert!(state == State::Degraded && detail.contains("`sample` (report this as a bug"), "{detail}");
    config.stacks.unwind = Unwinding::FramePointers;
    let by_pointers = (State::Healthy, "by frame pointers, as `stacks.unwind` says".to_owned());
    assert_eq!((copies(&config, &host), states::unwinding(&config, &host, None)), (false, Some(by_pointers)));
    // The modes `metrics`, with the default, and `reasons`.
    for yaml in ["stacks: {enabled: false}", "stacks: {unwind: none}"] {
        let config = Config::parse(yaml).unwrap();
        assert_eq!((copies(&config, &host), states::unwinding(&config, &host, None)), (false, None), "{yaml}");
    }
}

#[test]
fn what_the_documents_show_is_a_configuration() {
    let blocks = include_str!("../../../docs/otlp.md").split("```").skip(1).step_by(2);
    let blocks: Vec<_> = blocks.filter_map(|block| block.strip_prefix("yaml\n")).collect();
    assert!(blocks.len() >= 3);
    for block in blocks {
        let config =
            Config::parse(&block.replace("HOST", "localhost")).unwrap_or_else(|error| panic!("{error}: {block}"));
        Settings::try_from(config).unwrap();
    }
}

#[test]
fn a_sensor_that_is_not_in_the_file_keeps_its_default() {
    let config = Config::parse("sensors: {locks: {enabled: true}}").unwrap();
    let on: Vec<_> = config.sensors.iter().map(|(name, keys)| (name.as_str(), keys.enabled)).collect();
    assert_eq!(
        on,
        [
            ("calls", false),
            ("functions", false),
            ("histograms", false),
            ("interrupts", false),
            ("latencies", false),
            ("locks", true),
            ("syscalls", false),
            ("workqueues", false)
        ]
    );
    assert_eq!(Config::parse("sensors: {}").unwrap(), Config::default());
    let message = refusal("sensors: {lokcs: {enabled: true}}");
    assert!(
        message.contains(
            "no sensor has the name `lokcs` (there is `calls`, `functions`, `histograms`, `interrupts`, `latencies`, \
             `locks`, `syscalls`, `workqueues`)"
        ),
        "{message}"
    );
}
