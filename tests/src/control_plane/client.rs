//! A blocking client of the API server, for tests that have no runtime. Each call has a deadline.

use std::{fmt, path::Path, pin::pin, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use http::{Method, Request};
use k8s_openapi::{
    List,
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        core::v1::{Namespace, Pod, ServiceAccount},
    },
};
use kube::{
    Api, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::deadline::Deadline;

const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// One identity at one server; clones share their connections.
#[derive(Clone)]
pub struct Client {
    client: kube::Client,
    deadline: Duration,
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client for the user in a kubeconfig. The client caches a token for up to a minute: a new token needs a
    /// new client.
    pub fn new(kubeconfig: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let file = Kubeconfig::read_from(kubeconfig)?;
        let config = runtime.block_on(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()))?;
        let client = {
            let _entered = runtime.enter();
            kube::Client::try_from(config)?
        };
        Ok(Self { client, deadline: ANSWER_DEADLINE, runtime: Arc::new(runtime) })
    }

    /// Returns a client with another deadline for answers.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// Makes a namespace, unless it exists.
    pub fn create_namespace(&self, name: &str) -> Result<()> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let api = Api::<Namespace>::all(self.client.clone());
        match self.wait(api.create(&PostParams::default(), &namespace)) {
            Err(error) if code_of(&error) == Some(409) => Ok(()),
            made => made.map(drop),
        }
    }

    /// Makes a pod in its namespace, and returns it with its UID.
    pub fn create_pod(&self, pod: &Pod) -> Result<Pod> {
        let namespace = pod.metadata.namespace.as_deref().context("a pod without a namespace")?;
        self.wait(self.pods(namespace).create(&PostParams::default(), pod))
    }

    /// Returns the current state of a pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Result<Pod> {
        self.wait(self.pods(namespace).get(name))
    }

    /// Returns all pods of a node.
    pub fn pods_of(&self, node: &str) -> Result<Vec<Pod>> {
        let api = Api::<Pod>::all(self.client.clone());
        Ok(self.wait(api.list(&ListParams::default().fields(&format!("spec.nodeName={node}"))))?.items)
    }

    /// Returns the pods in a list of all nodes, by the list's path.
    pub(super) fn all_pods(&self, path: &str) -> Result<Vec<Pod>> {
        let list: List<Pod> = serde_json::from_str(&self.get(path)?)?;
        Ok(list.items)
    }

    /// Merges `patch` into a pod: labels, annotations, owners.
    pub fn patch_pod(&self, namespace: &str, name: &str, patch: &Value) -> Result<Pod> {
        self.wait(self.pods(namespace).patch(name, &PatchParams::default(), &Patch::Merge(patch)))
    }

    /// Merges `status` into a pod's status; lists are replaced whole.
    pub fn patch_status(&self, namespace: &str, name: &str, status: &Value) -> Result<Pod> {
        let patch = Patch::Merge(json!({"status": status}));
        self.wait(self.pods(namespace).patch_status(name, &PatchParams::default(), &patch))
    }

    /// Adds an ephemeral container, as `kubectl debug` does.
    pub fn add_ephemeral_container(&self, namespace: &str, name: &str, container: &str) -> Result<Pod> {
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [{"name": container, "image": "none"}]}}));
        self.wait(self.pods(namespace).patch_ephemeral_containers(name, &PatchParams::default(), &patch))
    }

    /// Removes a pod without a grace period: it is gone at once.
    pub fn delete_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        self.wait(self.pods(namespace).delete(name, &now)).map(drop)
    }

    /// Returns a token of a service account, made by the server. The shortest life is ten minutes.
    pub fn token(&self, namespace: &str, account: &str, life: Duration) -> Result<String> {
        let api = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        let seconds = i64::try_from(life.as_secs())?;
        let spec = TokenRequestSpec { expiration_seconds: Some(seconds), ..Default::default() };
        let request = TokenRequest { spec: Some(spec), ..Default::default() };
        let answer = self.wait(api.create_token_request(account, &PostParams::default(), &request))?;
        answer.status.and_then(|status| status.token).context("a token request without an answer")
    }

    /// Returns whether `user` may list the pods of all namespaces.
    pub fn may_list_pods(&self, user: &str) -> Result<bool> {
        let attributes =
            ResourceAttributes { resource: Some("pods".into()), verb: Some("list".into()), ..Default::default() };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.into()),
            resource_attributes: Some(attributes),
            ..Default::default()
        };
        let review = SubjectAccessReview { spec, ..Default::default() };
        let answer = self.wait(Api::all(self.client.clone()).create(&PostParams::default(), &review))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// Sends `GET path`, and returns the whole body. A watch must end by itself (`timeoutSeconds`).
    pub fn get(&self, path: &str) -> Result<String> {
        self.request(Method::GET, path, &Value::Null)
    }

    /// Sends any request, with a JSON body unless `body` is null.
    pub fn request(&self, method: Method, path: &str, body: &Value) -> Result<String> {
        let content = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        let request = Request::builder().method(method).uri(path).header("Content-Type", "application/json");
        self.wait(self.client.request_text(request.body(content)?))
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn wait<T>(&self, answer: impl Future<Output = kube::Result<T>>) -> Result<T> {
        // The timer needs the runtime, so the future is made inside of it.
        let deadline = Deadline::begin(self.deadline);
        self.runtime.block_on(async {
            let mut answer = pin!(answer);
            loop {
                if let Ok(answer) = tokio::time::timeout(deadline.left(), &mut answer).await {
                    return Ok(answer?);
                }
                deadline.check(|| "the API server answers".into())?;
            }
        })
    }
}

/// Returns the HTTP status code with which the server refused; `None` for any other error.
#[must_use]
pub fn code_of(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>()? {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
