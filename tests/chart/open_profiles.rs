//! The mode `profiles` shows the stacks of every tenant at the agents' port. The chart renders it only after a user has
//! chosen its readers.

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{suite::Test, tests};

use crate::helm::{GO, chart, notes, template};

pub(crate) const TESTS: &[Test] = tests![
    profiles_that_everybody_reads_are_refused: GO,
    profiles_for_chosen_readers_are_rendered: GO,
    other_modes_need_no_choice_of_readers: GO,
    the_notes_say_that_profiles_are_open: GO,
];

fn with_peers(peers: &str) -> String {
    format!("{{mode: profiles, networkPolicy: {{enabled: true, from: [{peers}]}}}}")
}

fn profiles_that_everybody_reads_are_refused() -> Result<()> {
    let one = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}";
    let mut cases = vec![
        ("mode: profiles".to_owned(), "http.acceptOpenProfiles: in the mode `profiles`"),
        // A policy that is not rendered blocks no clients.
        (format!("{{mode: profiles, networkPolicy: {{from: [{one}]}}}}"), "http.acceptOpenProfiles: "),
        ("{mode: profiles, http: {acceptOpenProfiles: false}}".to_owned(), "http.acceptOpenProfiles: "),
        ("{mode: profiles, http: {tls: {secretName: a}}}".to_owned(), "http.acceptOpenProfiles: "),
        (with_peers(""), "networkPolicy.from: empty, it lets in everybody"),
        ("{mode: profiles, http: {readers: []}}".to_owned(), "http.acceptOpenProfiles: "),
        ("{mode: profiles, http: {readers: [a]}, networkPolicy: {from: [{}]}}".to_owned(), "networkPolicy.from[0]: "),
    ];
    for peer in [
        "{}",
        "{namespaceSelector: {}}",
        "{namespaceSelector: {matchLabels: {}}}",
        "{namespaceSelector: {}, podSelector: {}}",
        // The creator of a pod chooses its labels.
        "{namespaceSelector: {}, podSelector: {matchLabels: {app: prometheus}}}",
        "{namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}}",
        "{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [a]}]}}",
        // Each namespace has that label.
        "{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: Exists}]}}",
        "{ipBlock: {cidr: 0.0.0.0/0}}",
        "{ipBlock: {cidr: 10.0.0.0/8}}",
        "{ipBlock: {cidr: 10.244.0.0/16}}",
        // One of two halves of all pods.
        "{ipBlock: {cidr: 10.244.0.0/17}}",
        "{ipBlock: {cidr: 10.244.0.0/23}}",
        "{ipBlock: {cidr: 'fd00:10:244::/119'}}",
        "{ipBlock: {cidr: '::/0'}}",
        "{ipBlock: {cidr: 'fd00::/8'}}",
        "{ipBlock: {cidr: 'fd00:10:244::/64'}}",
    ] {
        cases.push((with_peers(peer), "networkPolicy.from[0]: "));
        cases.push((with_peers(&format!("{one}, {peer}")), "networkPolicy.from[1]: "));
    }
    // In the namespace `default`, every user may have pods.
    for peer in ["{podSelector: {}}", "{podSelector: {matchLabels: {app: prometheus}}}"] {
        let values = format!("{{namespaceOverride: default, {}", with_peers(peer).trim_start_matches('{'));
        cases.push((values, "networkPolicy.from[0]: a podSelector alone is for pods of the agents' own namespace"));
    }
    for (values, words) in &cases {
        let error = template(values, &[]).err().with_context(|| format!("`{values}` is rendered"))?.to_string();
        ensure!(error.contains(words), "`{values}`: no `{words}` in: {error}");
        ensure!(error.contains("set http.readers to the namespaces that may read, or"), "no way out in: {error}");
    }
    Ok(())
}

fn profiles_for_chosen_readers_are_rendered() -> Result<()> {
    let mut cases = vec![
        "{mode: profiles, http: {acceptOpenProfiles: true}}".to_owned(),
        "{mode: profiles, http: {readers: [monitoring]}}".to_owned(),
        "{mode: profiles, http: {tls: {secretName: a}, authorization: {enabled: true}}}".to_owned(),
        "{mode: profiles, hostNetwork: true, http: {tls: {secretName: a}, authorization: {enabled: true}}}".to_owned(),
        // A policy without limits beside tokens is not wider than no policy.
        "{mode: profiles, http: {tls: {secretName: a}, authorization: {enabled: true}}, networkPolicy: {enabled: true}}"
            .to_owned(),
    ];
    for peer in [
        "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}",
        "{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [a, b]}]}}",
        "{namespaceSelector: {matchExpressions: [{key: monitoring, operator: Exists}]}}",
        // The agents' namespace: a user who may create pods there may control nodes.
        "{podSelector: {}}",
        "{podSelector: {matchLabels: {app: prometheus}}}",
        "{ipBlock: {cidr: 10.1.2.3/32}}",
        "{ipBlock: {cidr: 10.1.2.0/24}}",
        "{ipBlock: {cidr: 'fd00::1/128'}}",
        "{ipBlock: {cidr: 'fd00::100/120'}}",
    ] {
        cases.push(with_peers(peer));
    }
    for values in &cases {
        template(values, &[]).with_context(|| format!("`{values}` is refused"))?;
    }
    Ok(())
}

fn other_modes_need_no_choice_of_readers() -> Result<()> {
    let policies = ["", ", networkPolicy: {enabled: true, from: [{namespaceSelector: {}}]}"];
    for (mode, policy) in ["metrics", "reasons"].into_iter().flat_map(|mode| policies.map(|policy| (mode, policy))) {
        let values = format!("{{mode: {mode}{policy}}}");
        template(&values, &[]).with_context(|| format!("`{values}` is refused"))?;
    }
    Ok(())
}

fn the_notes_say_that_profiles_are_open() -> Result<()> {
    let open = notes(&chart(), "{mode: profiles, http: {acceptOpenProfiles: true}}", &[])?;
    ensure!(open.contains("WARNING: THE STACKS OF EVERY TENANT ARE OPEN"), "{open}");
    let guarded =
        "{mode: profiles, http: {acceptOpenProfiles: true, tls: {secretName: a}, authorization: {enabled: true}}}";
    for values in [guarded, "http: {acceptOpenProfiles: true}"] {
        let said = notes(&chart(), values, &[])?;
        ensure!(!said.contains("OF EVERY TENANT"), "`{values}`: {said}");
    }
    Ok(())
}
