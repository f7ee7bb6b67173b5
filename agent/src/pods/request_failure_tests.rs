use super::*;

fn server(kind: ServerKind) -> Server {
    Server { url: "https://10.0.0.1:6443".into(), kind }
}

fn status(code: u16, message: &str) -> Status {
    Status::failure(message, "").with_code(code)
}

fn refused(kind: ServerKind, code: u16, message: &str) -> String {
    server(kind).refused(&status(code, message)).text
}

#[test]
fn a_refusal_names_what_would_mend_it() {
    use ServerKind::{Api, Kubelet};
    let by_user = r#"pods is forbidden: User "jane" cannot watch resource "pods" in API group "" in the namespace "a""#;
    let by_nobody = &by_user.replace("jane", "system:anonymous");
    for (kind, code, message, expected) in [
        (Api, 403, by_user, "may not watch `pods`"),
        (Api, 403, by_user, "to user `jane`: see config/rbac.yaml)"),
        (Api, 403, "no", "may not list and watch `pods`: no (grant `get`, `list` and `watch` on `pods`"),
        (Api, 403, by_nobody, "failed to log in at the API server at `https://10.0.0.1:6443`: no token was sent"),
        (Kubelet, 403, "Forbidden (user=system:anonymous, verb=get, resource=nodes)", "no token was sent"),
        (Api, 401, "Unauthorized", "expired, or of another cluster?"),
        (Kubelet, 401, "Unauthorized", "authentication.webhook.enabled"),
        (Kubelet, 403, "no", "(grant `get` on `nodes/pods`, or on `nodes/proxy` before Kubernetes 1.33)"),
        (Api, 404, "<html>", "not found (is the address right?)"),
        (Api, 429, "too many requests", "429: too many requests (is it overloaded, or starting?)"),
        (Api, 503, "apiserver not ready", "503: apiserver not ready (is it overloaded, or starting?)"),
        (
            Api,
            502,
            " <html>\n<body>",
            "failed to be served by the API server at `https://10.0.0.1:6443`: 502: a page of HTML",
        ),
        (Api, 500, "first\nsecond", "500: first"),
    ] {
        let text = refused(kind, code, message);
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains('\n') && !text.contains('<'), "{text}");
    }
    assert!(refused(Api, 500, &"x".repeat(10_000)).len() < 400);
}

#[test]
fn a_remedy_is_more_than_patience_only_where_it_helps() {
    let remedy = |code| server(ServerKind::Api).refused(&status(code, "")).remedy;
    assert_eq!(remedy(410), Remedy::List);
    assert_eq!(remedy(401), Remedy::Login);
    assert_eq!(remedy(0), Remedy::List);
    assert!([403, 404, 429, 500, 503].map(remedy).iter().all(|remedy| *remedy == Remedy::Retry));
}

#[test]
fn the_wait_that_a_server_asks_for_is_kept() {
    let answer = r#"{"code": 429, "message": "busy", "details": {"retryAfterSeconds": 7}}"#;
    let failure = server(ServerKind::Api).refused(&serde_json::from_str(answer).unwrap());
    assert_eq!(failure.wait, Duration::from_secs(7));
}

#[test]
fn a_connection_that_fails_names_the_cause_and_what_to_look_at() {
    let reached = |kind, cause: &str| {
        let error = kube::Error::Service(Box::new(std::io::Error::other(cause.to_owned())));
        server(kind).failure(&error)
    };
    for (cause, hint) in [
        ("Connection refused (os error 111)", "(does it run, and there?)"),
        ("failed to lookup address information: Name or service not known", "`ClusterFirstWithHostNet`)"),
        ("operation timed out", "(is there a NetworkPolicy or a firewall between?)"),
        ("No route to host", "host"),
        ("invalid peer certificate: UnknownIssuer", "(its certificate is not of the cluster's CA)"),
        (
            "invalid peer certificate: certificate not valid for name \"x\"",
            "(use a name or address that its certificate has)",
        ),
        ("invalid peer certificate: Expired", "(is the clock right?)"),
        (
            "invalid peer certificate: certificate expired: verification time 7 (UNIX), but certificate is not valid after 5",
            "invalid peer certificate: certificate expired (is the clock right?)",
        ),
        ("received corrupt message of type InvalidContentType", "(it does not speak TLS)"),
    ] {
        let text = reached(ServerKind::Api, cause).text;
        assert!(
            text.starts_with("failed to reach the API server at `https://10.0.0.1:6443`: ") && text.ends_with(hint),
            "{text}"
        );
    }
    let failure = reached(ServerKind::Kubelet, "invalid peer certificate: UnknownIssuer");
    assert!(failure.text.contains("`kubernetes.kubelet.caFile`") && failure.remedy == Remedy::Login, "{failure:?}");
}

#[test]
fn the_output_of_a_plugin_is_not_reported() {
    use std::os::unix::process::ExitStatusExt;
    let out = std::process::Output {
        status: std::process::ExitStatus::from_raw(256),
        stdout: b"token: hunter2".to_vec(),
        stderr: Vec::new(),
    };
    let error = AuthError::AuthExecRun { cmd: "login --password hunter2".into(), out: Box::new(out) };
    let text = server(ServerKind::Api).failure(&kube::Error::Auth(error)).text;
    assert_eq!(text, "failed to run the kubeconfig's credential plugin: exit status: 1");
}

#[test]
fn a_garbled_answer_is_not_quoted() {
    let error = serde_json::from_str::<u8>("\"hunter2\"").unwrap_err();
    let text = server(ServerKind::Api).failure(&kube::Error::SerdeError(error)).text;
    assert!(text.contains("not a pod's JSON at line 1 column 9") && !text.contains("hunter2"), "{text}");
}
