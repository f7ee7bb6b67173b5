//! The pods of this node from the API server: a list, then a watch that starts at the list's version.
//!
//! The watch ends every few minutes, and a new one continues at the same version without a report. Each failure is
//! reported, since changes may be missed until the watch works again. Then the watch continues from the last version
//! seen. Only if the server no longer knows that version does the source list everything again.
//!
//! Not `kube::runtime::watcher`: it restarts a watch silently, so the agent could not know when an outage ends; it
//! skips an event that it cannot read; and it notices a dead connection only after five minutes.

use std::{convert::Infallible, pin::pin};

use futures_util::TryStreamExt;
use kube::{
    Client,
    api::{ListParams, VersionMatch, WatchEvent, WatchParams},
    core::Request,
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    ask::{self, quietly},
    credentials::Credentials,
    pace::Pace,
    prune::PruneRules,
    raw_pod::RawPod,
    reporter::Reporter,
    request_failure::{Failure, Remedy, Server},
};
use crate::{model::random::random_below, transport::backoff::Backoff};

/// Longest duration of a watch and the range of its random reduction, in seconds: otherwise all clients that a server
/// lost at once would return at once.
const WATCH_SECONDS: (u32, u32) = (290, 90);

/// The watch source.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) credentials: Credentials,
    pub(super) server: Server,
    pub(super) node_name: String,
    pub(super) keep: PruneRules,
    pub(super) pace: Pace,
    pub(super) reporter: Reporter,
}

/// State that one attempt leaves to the next.
#[derive(Default)]
struct Session {
    client: Option<Client>,
    /// Version up to which all changes were reported.
    version: Option<String>,
    listed: bool,
    /// `true` if the watch continues from a version of an earlier watch, and not from a list.
    resumed: bool,
}

impl Watch {
    pub(super) async fn run(mut self) {
        let mut session = Session::default();
        let mut backoff = Backoff::new(self.pace.first, self.pace.most);
        loop {
            let Err(failure) = self.watch(&mut session, &mut backoff).await;
            self.reporter.failed(&failure.text);
            match failure.remedy {
                // The list follows an outage, which has already cost its delays.
                Remedy::List if session.resumed => {
                    session.version = None;
                    continue;
                }
                Remedy::List => session.version = None,
                Remedy::Login => session.client = None,
                Remedy::Retry => {}
            }
            sleep(backoff.next().max(failure.wait)).await;
        }
    }

    /// Watches until a failure: lists the pods if needed, and starts each next watch where the last one ended.
    async fn watch(&mut self, session: &mut Session, backoff: &mut Backoff) -> Result<Infallible, Failure> {
        let client = match &session.client {
            Some(client) => client.clone(),
            None => session.client.insert(self.credentials.login(&self.server).await?).clone(),
        };
        loop {
            session.resumed = session.version.is_some();
            let mut version = match session.version.take() {
                Some(version) => version,
                None => self.list(&client, session.listed).await?,
            };
            session.listed = true;
            let mut began = None;
            let result = self.follow(&client, &mut version, &mut began).await;
            session.version = Some(version);
            let lasted = began.map(|began: Instant| began.elapsed()).unwrap_or_default();
            if lasted >= self.pace.settled {
                backoff.reset();
            }
            result?;
            if lasted < self.pace.brief {
                let text = format!("failed to keep a watch at {}: it ends as soon as it begins", self.server);
                return Err(Failure::new(Remedy::Retry, text));
            }
        }
    }

    /// Requests the list, reports it and returns its version.
    async fn list(&mut self, client: &Client, again: bool) -> Result<String, Failure> {
        let mut params = ListParams { field_selector: Some(self.selector()), ..ListParams::default() };
        if !again {
            // The first list comes from the server's cache, since all agents may start at once. A later list must not
            // be older than the changes reported before, and a cache could be.
            params.resource_version = Some("0".into());
            params.version_match = Some(VersionMatch::NotOlderThan);
        }
        let list = ask::list(self.pace.list, &self.server, client, &request(), &params).await?;
        if list.metadata.resource_version.is_empty() {
            return Err(self.server.garbled("a list without a version"));
        }
        self.reporter.listed(list.items.into_iter().filter_map(|raw| self.keep.prune(raw)).collect());
        Ok(list.metadata.resource_version)
    }

    /// Follows one watch until it ends without an error.
    async fn follow(
        &mut self,
        client: &Client,
        version: &mut String,
        began: &mut Option<Instant>,
    ) -> Result<(), Failure> {
        let (most, spread) = WATCH_SECONDS;
        let params = WatchParams {
            field_selector: Some(self.selector()),
            timeout: Some(most - random_below(spread)),
            ..WatchParams::default()
        };
        let request = request()
            .watch(&params, version)
            .map_err(|error| self.server.failure(&kube::Error::BuildRequest(error)))?;
        let opened = {
            let opening = quietly(client.request_events::<RawPod>(request));
            let mut opening = pin!(ask::within(self.pace.open, &self.server, opening));
            match timeout(self.pace.hesitate, &mut opening).await {
                Ok(opened) => opened,
                Err(_) => {
                    self.reporter.down(&self.server.silent(self.pace.hesitate).text);
                    opening.await
                }
            }
        };
        let mut events = pin!(opened?);
        *began = Some(Instant::now());
        self.reporter.up();
        loop {
            let event = match timeout(self.pace.idle, quietly(events.try_next())).await {
                Ok(event) => event.map_err(|error| self.server.failure(&error))?,
                // The connection may be dead. If so, the next watch fails.
                Err(_) => None,
            };
            let Some(event) = event else { return Ok(()) };
            *version = self.take(event)?;
        }
    }

    /// Reports an event and returns the version after it.
    fn take(&mut self, event: WatchEvent<RawPod>) -> Result<String, Failure> {
        let (mut raw, deleted) = match event {
            WatchEvent::Added(raw) | WatchEvent::Modified(raw) => (raw, false),
            WatchEvent::Deleted(raw) => (raw, true),
            WatchEvent::Bookmark(bookmark) => {
                self.reporter.alive();
                return Ok(bookmark.metadata.resource_version);
            }
            WatchEvent::Error(status) => return Err(self.server.refused(&status)),
        };
        let version = std::mem::take(&mut raw.metadata.resource_version);
        match self.keep.prune(raw) {
            Some(pod) if !version.is_empty() => {
                if deleted {
                    self.reporter.deleted(pod)
                } else {
                    self.reporter.applied(pod)
                }
                Ok(version)
            }
            _ => Err(self.server.garbled("not a pod")),
        }
    }

    fn selector(&self) -> String {
        format!("spec.nodeName={}", self.node_name)
    }
}

fn request() -> Request {
    Request::new("/api/v1/pods")
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
