//! The two questions to the API server: the owner of a token, and the owner's permission.

use std::{sync::PoisonError, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::Verdict;
use crate::pods::{Credentials, Remedy, Server, ServerKind, SourceError, quietly};

/// Timeout for both questions together. Prometheus waits for 10 s.
const PATIENCE: Duration = Duration::from_secs(4);

/// Sends the reviews to the API server.
pub(super) struct Reviewer {
    credentials: Credentials,
    server: Server,
    audiences: Vec<String>,
    client: std::sync::Mutex<Option<Client>>,
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Reviewer {
    pub(super) fn new(credentials: Credentials, audiences: Vec<String>) -> Result<Self, SourceError> {
        let server = credentials.server(ServerKind::Api)?;
        Ok(Self { credentials, server, audiences, client: std::sync::Mutex::default() })
    }

    /// Returns the API server, for messages.
    pub(super) const fn server(&self) -> &Server {
        &self.server
    }

    /// Sends both reviews. Returns the reason if there is no answer.
    pub(super) async fn review(&self, token: &str, verb: &str, path: &str) -> Result<Verdict, String> {
        let asked = timeout(PATIENCE, self.ask(token, verb, path)).await;
        asked.unwrap_or_else(|_| Err(self.server.silent(PATIENCE).text))
    }

    async fn ask(&self, token: &str, verb: &str, path: &str) -> Result<Verdict, String> {
        let client = self.client().await?;
        let audiences = (!self.audiences.is_empty()).then(|| self.audiences.clone());
        let spec = TokenReviewSpec { token: token.to_owned(), audiences };
        let review = self.create(&client, &TokenReview { spec, ..Default::default() }).await?;
        let status = review.status.unwrap_or_default();
        // An API server that does not support audiences would accept any token.
        let meant = self.audiences.is_empty()
            || status.audiences.iter().flatten().any(|audience| self.audiences.contains(audience));
        let Some(UserInfo { username: Some(user), uid, groups, extra }) = status.user else {
            return Ok(Verdict::BadToken);
        };
        if status.authenticated != Some(true) || !meant {
            return Ok(Verdict::BadToken);
        }
        let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some(verb.to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.clone()),
            uid,
            groups,
            extra,
            non_resource_attributes: Some(attributes),
            ..Default::default()
        };
        let review = self.create(&client, &SubjectAccessReview { spec, ..Default::default() }).await?;
        let allowed = review.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        Ok(if allowed { Verdict::Allowed { user: user.into() } } else { Verdict::Forbidden { user } })
    }

    /// Returns the last working client, or a new one.
    async fn client(&self) -> Result<Client, String> {
        let known = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(client) = known {
            return Ok(client);
        }
        let client = self.credentials.login(&self.server).await.map_err(|failure| failure.text)?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    async fn create<R>(&self, client: &Client, review: &R) -> Result<R, String>
    where
        R: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let created = quietly(Api::<R>::all(client.clone()).create(&PostParams::default(), review)).await;
        created.map_err(|error| {
            if let kube::Error::Api(status) = &error
                && status.code == 403
            {
                let what = format!("{}.{}", R::plural(&()), R::group(&()));
                return format!(
                    "may not create `{what}` at {} (grant it: see config/rbac-authorization.yaml)",
                    self.server
                );
            }
            let failure = self.server.failure(&error);
            if failure.remedy == Remedy::Login {
                *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            failure.text
        })
    }
}
