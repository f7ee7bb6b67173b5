//! The pods of this node from the API server: a list, then a watch from there on.
//!
//! The watch ends every few minutes and is taken up where it was, without a word. Whatever fails is told, since changes
//! may be missed until it works again; then the watch goes on from the last version seen, and only where the server no
//! longer knows that is everything listed anew.
//!
//! Not `kube::runtime::watcher`: it takes a watch up again in silence, so that nobody can know when an outage ends; it
//! skips an event that it cannot read; and the first sign of a dead connection is after five minutes.

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
    backoff::{Backoff, Pace, random},
    credentials::Credentials,
    failure::{Failure, Remedy, Server},
    prune::Keep,
    raw::RawPod,
    report::Reporter,
};

/// For a watch to end, in seconds, and by how much less: else all that a server lost at once would return at once.
const WATCH_SECONDS: (u32, u32) = (290, 90);

/// The source.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) credentials: Credentials,
    pub(super) server: Server,
    pub(super) node_name: String,
    pub(super) keep: Keep,
    pub(super) pace: Pace,
    pub(super) reporter: Reporter,
}

/// What one attempt leaves to the next.
#[derive(Default)]
struct Session {
    client: Option<Client>,
    /// Up to which all changes were told.
    version: Option<String>,
    listed: bool,
    /// It goes on from a version that an earlier watch has seen, and not from a list.
    resumed: bool,
}

impl Watch {
    pub(super) async fn run(mut self) {
        let mut session = Session::default();
        let mut backoff = Backoff::new(self.pace);
        loop {
            let Err(failure) = self.watch(&mut session, &mut backoff).await;
            self.reporter.failed(&failure.text);
            match failure.remedy {
                // After an outage, which has cost its waits already.
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

    /// Watches on and on.
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

    /// The version of the list that was told.
    async fn list(&mut self, client: &Client, again: bool) -> Result<String, Failure> {
        let mut params = ListParams { field_selector: Some(self.selector()), ..ListParams::default() };
        if !again {
            // From the server's cache, since all agents may start at once. A later list must not be older than what
            // was told before, and a cache could be.
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

    /// Watches until the watch ends in peace.
    async fn follow(
        &mut self,
        client: &Client,
        version: &mut String,
        began: &mut Option<Instant>,
    ) -> Result<(), Failure> {
        let (most, spread) = WATCH_SECONDS;
        let params = WatchParams {
            field_selector: Some(self.selector()),
            timeout: Some(most - random(spread)),
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
                // The connection may be dead. If it is, the next watch will tell.
                Err(_) => None,
            };
            let Some(event) = event else { return Ok(()) };
            *version = self.take(event)?;
        }
    }

    /// The version after an event.
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
