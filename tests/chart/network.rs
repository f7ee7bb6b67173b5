//! The NetworkPolicy allows connections to the agents' configured peers, and to nothing else.

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{suite::Test, tests};
use serde_yaml::Value;

use crate::helm::{GO, chart, notes, object, template};

pub(crate) const TESTS: &[Test] = tests![
    the_way_to_the_receiver_is_open_wherever_its_address_is_set: GO,
    the_way_to_debuginfod_servers_is_open_at_their_ports: GO,
    a_receiver_that_the_chart_cannot_see_is_named_in_the_notes: GO,
    dns_is_asked_of_the_clusters_dns_alone: GO,
    readers_by_namespace_make_the_policy: GO,
];

fn egress(values: &str, arguments: &[&str]) -> Result<Vec<Value>> {
    let policy = object(&template(values, arguments)?, "NetworkPolicy")?;
    Ok(policy["spec"]["egress"].as_sequence().context("no egress")?.clone())
}

fn ports(rules: &[Value]) -> Vec<u64> {
    rules.iter().filter_map(|rule| rule["ports"].as_sequence()).flatten().filter_map(|it| it["port"].as_u64()).collect()
}

fn the_way_to_the_receiver_is_open_wherever_its_address_is_set() -> Result<()> {
    let metrics = "otlp: {metrics: {enabled: true}}";
    let environment = |variables: &str| {
        format!("{{networkPolicy: {{enabled: true}}, config: {{{metrics}}}, extraEnv: [{variables}]}}")
    };
    let general = "{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'http://collector:4001'}";
    let of_signal = "{name: OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT, value: 'https://[fd00::1]:4002/base'}";
    for (values, port) in [
        (
            "{networkPolicy: {enabled: true}, config: {otlp: {endpoint: 'http://a:4000', metrics: {enabled: true}}}}"
                .to_owned(),
            4000,
        ),
        (environment(general), 4001),
        (environment(&format!("{general}, {of_signal}")), 4002),
        (environment("{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'collector:4003'}"), 4003),
        // The file has precedence over the environment.
        (environment(general).replace("metrics: {enabled", "endpoint: 'http://a:4004', metrics: {enabled"), 4004),
        // The flag has precedence over the file.
        (
            "{networkPolicy: {enabled: true}, config: {otlp: {endpoint: 'http://a:4000', metrics: {enabled: true}}}, \
             extraArgs: [--otlp-endpoint, 'http://a:4005']}"
                .to_owned(),
            4005,
        ),
        (
            "{networkPolicy: {enabled: true}, config: {otlp: {metrics: {enabled: true}}}, \
             extraArgs: ['--otlp-endpoint=http://a:4006']}"
                .to_owned(),
            4006,
        ),
    ] {
        let found = ports(&egress(&values, &[])?);
        let of_receivers: Vec<_> = found.iter().filter(|found| (4000..4100).contains(*found)).collect();
        ensure!(of_receivers == [&port], "`{values}`: {found:?}");
    }
    let none = ports(&egress("networkPolicy: {enabled: true}", &[])?);
    ensure!(none == [53, 53, 443, 6443], "{none:?}");
    Ok(())
}

fn the_way_to_debuginfod_servers_is_open_at_their_ports() -> Result<()> {
    let values = |peers: &str| {
        format!(
            "{{mode: profiles, http: {{acceptOpenProfiles: true}}, \
             networkPolicy: {{enabled: true, debuginfod: {peers}}}, config: {{stacks: {{debuginfod: {{urls: \
             ['http://a:4000/x', 'http://b:4000', 'https://[fd00::1]:4001']}}}}}}}}"
        )
    };
    let rule = |peers: &str| -> Result<Value> {
        let rules = egress(&values(peers), &[])?;
        let rule = rules.into_iter().find(|rule| ports(std::slice::from_ref(rule)).contains(&4000));
        rule.context("no rule for the servers")
    };
    let open = rule("[]")?;
    ensure!(ports(std::slice::from_ref(&open)) == [4000, 4001] && open["to"].is_null(), "{open:?}");
    let narrow = rule("[{ipBlock: {cidr: 10.0.0.2/32}}]")?;
    ensure!(narrow["to"][0]["ipBlock"]["cidr"] == "10.0.0.2/32", "{narrow:?}");
    Ok(())
}

fn a_receiver_that_the_chart_cannot_see_is_named_in_the_notes() -> Result<()> {
    let words = "allow it by networkPolicy.extraEgress";
    for hidden in [
        "extraEnvFrom: [{secretRef: {name: a}}]",
        "extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, valueFrom: {secretKeyRef: {name: a, key: b}}}]",
    ] {
        let said = notes(&chart(), &format!("{{networkPolicy: {{enabled: true}}, {hidden}}}"), &[])?;
        ensure!(said.contains(words), "`{hidden}`: {said}");
        ensure!(!notes(&chart(), &format!("{{{hidden}}}"), &[])?.contains(words), "there is no policy");
    }
    ensure!(!notes(&chart(), "networkPolicy: {enabled: true}", &[])?.contains(words), "OTLP is not used");
    Ok(())
}

fn dns_is_asked_of_the_clusters_dns_alone() -> Result<()> {
    let dns = |values: &str, arguments: &[&str]| -> Result<Value> {
        Ok(egress(&format!("{{networkPolicy: {{enabled: true{values}}}}}"), arguments)?.swap_remove(0))
    };
    let plain = dns("", &[])?;
    ensure!(ports(std::slice::from_ref(&plain)) == [53, 53], "{plain:?}");
    ensure!(plain["to"][0]["podSelector"]["matchLabels"]["k8s-app"] == "kube-dns", "{plain:?}");
    ensure!(plain["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "kube-system");
    let openshift = dns("", &["--api-versions", "security.openshift.io/v1"])?;
    ensure!(ports(std::slice::from_ref(&openshift)) == [5353, 5353], "{openshift:?}");
    ensure!(openshift["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "openshift-dns");
    let own = dns(", dns: {ports: [5300], to: [{ipBlock: {cidr: 10.0.0.53/32}}]}", &[])?;
    ensure!(ports(std::slice::from_ref(&own)) == [5300, 5300] && own["to"][0]["ipBlock"]["cidr"] == "10.0.0.53/32");
    let node = egress("{dnsPolicy: Default, networkPolicy: {enabled: true}}", &[])?;
    ensure!(node[0]["to"].is_null(), "the node's own servers are not known: {node:?}");
    Ok(())
}

fn readers_by_namespace_make_the_policy() -> Result<()> {
    let peers = |values: &str| -> Result<Vec<Value>> {
        let policy = object(&template(values, &[])?, "NetworkPolicy")?;
        Ok(policy["spec"]["ingress"][0]["from"].as_sequence().context("everybody comes in")?.clone())
    };
    let namespace = |peer: &Value| {
        let labels = &peer["namespaceSelector"]["matchLabels"];
        labels["kubernetes.io/metadata.name"].as_str().map(str::to_owned)
    };
    let found = peers("{tests: {enabled: false}, http: {readers: [monitoring, ops]}}")?;
    ensure!(found.iter().filter_map(namespace).eq(["monitoring", "ops"]) && found.len() == 2, "{found:?}");
    let found = peers("{http: {readers: [monitoring]}, networkPolicy: {from: [{podSelector: {}}]}}")?;
    ensure!(found.iter().filter_map(namespace).eq(["monitoring"]), "{found:?}");
    // A peer of `networkPolicy.from`, the namespace, and `helm test`.
    ensure!(found.len() == 3 && found[0]["podSelector"].is_mapping(), "{found:?}");
    // They say nothing about the agents' own connections, whose ports depend on the cluster.
    for (values, types) in [
        ("http: {readers: [monitoring]}", &["Ingress"][..]),
        ("{http: {readers: [monitoring]}, networkPolicy: {enabled: true}}", &["Ingress", "Egress"][..]),
    ] {
        let spec = object(&template(values, &[])?, "NetworkPolicy")?["spec"].clone();
        let found = spec["policyTypes"].as_sequence().context("no types")?;
        ensure!(found.iter().filter_map(Value::as_str).eq(types.iter().copied()), "{spec:?}");
        ensure!(spec["egress"].is_null() == (types.len() == 1), "{spec:?}");
    }
    let hidden = "{http: {readers: [monitoring]}, extraEnvFrom: [{secretRef: {name: a}}]}";
    ensure!(!notes(&chart(), hidden, &[])?.contains("networkPolicy.extraEgress"), "nothing limits these connections");
    ensure!(object(&template("", &[])?, "NetworkPolicy").is_err(), "there is a policy without readers");
    Ok(())
}
